"""Rules of the user's own: a kernel that no compiler can look into, made one that can be partitioned."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import jax
import jax.extend.source_info_util as source_info_util
from jax.experimental.custom_partitioning import custom_partitioning

from planner.errors import ArgumentError, RuleError
from planner.program.graph import Graph, Op
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.pallas.kernel_counts import EXPONENTIALS
from planner.program.tracing.arguments import name_of
from planner.program.tracing.trace import trace
from planner.rules.choose import op_rule
from planner.rules.composite import CompositeStep, compose
from planner.rules.kernels.kernel_parts import COMBINE, Parts, as_sdy_rule, kernel_of
from planner.rules.kernels.kernel_work import Declared, KernelWork, amount, checked
from planner.rules.op_work import engine_of, flops_of, guessed_in
from planner.rules.primitives import slides_of, traits
from planner.rules.rule import Dim, Kind, Rule, parse_rule
from planner.rules.sliding import image_of

# A kernel is named after the line that calls it, not after one of this file.
source_info_util.register_exclusion(__file__)

Shapes = Sequence[Sequence[int]]


def rule_for(
    fn: Callable[..., Any],
    rule: str | None = None,
    *,
    like: Callable[..., Any] | None = None,
    flops: Declared | None = None,
    bytes: Declared | None = None,
) -> Callable[..., Any]:
    """A function that computes what `fn` does, and that can be partitioned, with or without a plan.

    On several devices `fn` runs on the local parts of its arguments, so it must not depend on the extents of what is
    split; partial results are combined. To be differentiated it needs `jax.custom_vjp` around it, like `fn` itself.

    Parameters
    ----------
    fn: a function of pytrees of arrays: one around a `pallas_call`, an `ffi_call`, a `pure_callback`, ...
    rule: its factor rule, the leaves of arguments and results in order: "b i, i j -> b j | reduce i". What may not be
        split is named `replicate`; partial results add up unless it says `reduce(max)`, `(min)`, `(and)` or `(or)`.
    like: instead of a rule, a plain JAX function of the same arguments and results, to take the rule from, and the
        operations of a run where `flops` does not say them.
    flops: the floating-point operations of one run, a multiply-add as two: a number is that of the whole arrays, which
        the parts share evenly; a function is called with the arguments of the kernel as `jax.ShapeDtypeStruct`s of the
        parts that a device holds. They run at the rate of matrix units, unless most of those of `like` do not. Without
        them, and without `like`, those of `fn` are counted; where it calls what cannot be looked into, one operation per
        result element is assumed, and the plan says so (`plan.guessed`).
    bytes: what one run reads from and writes to memory, in the same terms; without, every operand and result once.

    Raises
    ------
    ArgumentError: not exactly one of `rule` and `like`; a work that is no number of at least 0, or, when planned, a
    function that gives none. RuleError: a malformed rule; when called: one that does not fit the arrays, or a `like`
    with other results.
    """
    if not callable(fn):
        raise ArgumentError(f"fn must be a function, got {fn!r}; give the function that calls the kernel")
    if (rule is None) == (like is None):
        raise ArgumentError("rule_for takes either a rule or like=, a JAX function to take the rule from; give one")
    if rule is not None and not isinstance(rule, str):
        raise ArgumentError(f"rule is {rule!r}; write it as text, such as 'b i, i j -> b j | reduce i'")
    if like is not None and not callable(like):
        raise ArgumentError(f"like must be a function, got {like!r}; give plain JAX code of the same arguments")
    written = None if rule is None else _checked(rule)
    declared_flops, declared_bytes, name = checked("flops", flops), checked("bytes", bytes), name_of(fn)

    @wraps(fn)
    def partitioned(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))

        def flat(*values: Any) -> list[Any]:
            args, kwargs = jax.tree.unflatten(tree, values)
            return jax.tree.leaves(fn(*args, **kwargs))

        def again(*values: Any) -> list[Any]:
            args, kwargs = jax.tree.unflatten(tree, values)
            return jax.tree.leaves(partitioned(*args, **kwargs))

        made = jax.eval_shape(fn, *args, **kwargs)
        results = jax.tree.leaves(made)
        shapes = [leaf.shape for leaf in map(jax.typeof, leaves)], [leaf.shape for leaf in results]
        structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in map(jax.typeof, leaves)]
        if written is not None:
            found = _sized(written, str(rule), *shapes)
            own = _work_like(build_graph(trace(flat, structs)), name)
            unknown = KernelWork(name=name, flops=None, bytes=None, engine="vector", guessed=True)
            work = unknown if own.guessed else own
        else:
            graph = _graph_like(like, tree, structs, results)
            found, work = _rule_like(graph, len(leaves)), _work_like(graph, name)
        if declared_flops is not None:
            engine = work.engine if written is None else "matrix"
            work = replace(
                work, flops=amount("flops", name, declared_flops, tree, structs), engine=engine, guessed=False
            )
        work = replace(work, bytes=amount("bytes", name, declared_bytes, tree, structs))
        # Within a function jitted on its own, arrays that it closes over are no constants of the call.
        call = custom_partitioning(jax.jit(flat))
        parts = Parts(rule=found, run=flat, work=work, on_parts=again)
        call.def_partition(parts, sharding_rule=as_sdy_rule(found))
        return jax.tree.unflatten(jax.tree.structure(made), call(*leaves))

    return partitioned


def _checked(text: str) -> Rule:
    """The rule of a text. Raises: RuleError where a kernel cannot be run by it."""
    rule = parse_rule(text)
    for factor, kind in enumerate(rule.kinds):
        name = _letters(text, (factor,))
        if kind == "permute":
            raise RuleError(
                f"the rule {text!r} permutes a factor, but a kernel does not exchange with its neighbours; "
                "write replicate instead"
            )
        if kind == "reduce" and any(factor in dim for dims in rule.results for dim in dims):
            raise RuleError(
                f"the rule {text!r} reduces a factor that a result still has; name it in operands only ({name})"
            )
    if "reduce" in rule.kinds and rule.combiner not in COMBINE:
        raise RuleError(
            f"the rule {text!r} combines by {rule.combiner!r}; use reduce, reduce(max), reduce(min), reduce(and) or "
            "reduce(or)"
        )
    return rule


def _sized(rule: Rule, text: str, operands: Shapes, results: Shapes) -> Rule:
    """The rule with the sizes of its factors. Raises: RuleError where it does not fit the arrays."""
    arrays = [
        (f"{what} {n}", dims, shape)
        for what, side, shapes in (("operand", rule.operands, operands), ("result", rule.results, results))
        for n, (dims, shape) in enumerate(_paired(text, what, side, shapes))
    ]
    sizes = [0] * len(rule.sizes)
    for word, dims, shape in arrays:
        if len(dims) != len(shape):
            raise RuleError(f"{word} has shape {tuple(shape)}, but the rule {text!r} gives it {len(dims)} dims")
        for dim, extent in zip(dims, shape, strict=True):
            if len(dim) == 1 and sizes[dim[0]] not in (0, extent):
                raise RuleError(
                    f"factor {_letters(text, dim)} of the rule {text!r} is {sizes[dim[0]]}, but {word} of shape "
                    f"{tuple(shape)} has {extent} there; name different factors"
                )
            if len(dim) == 1:
                sizes[dim[0]] = extent
    for word, dims, shape in arrays:
        for dim, extent in zip(dims, shape, strict=True):
            unknown = [factor for factor in dim if not sizes[factor]]
            known = 1
            for factor in dim:
                known *= sizes[factor] or 1
            if len(unknown) == 1 and extent % known == 0:
                sizes[unknown[0]] = extent // known
            elif unknown or known != extent:
                raise RuleError(
                    f"the rule {text!r} makes a dim of {word}, of shape {tuple(shape)}, of the factors "
                    f"({_letters(text, dim)}), whose sizes do not multiply to {extent}; a factor of unknown size must be a "
                    "dim of its own somewhere, or the only one in a dim"
                )
    return Rule(
        operands=rule.operands, results=rule.results, sizes=tuple(sizes), kinds=rule.kinds, combiner=rule.combiner
    )


def _paired(text: str, what: str, side: Sequence[Any], shapes: Shapes) -> list[tuple[Any, Sequence[int]]]:
    if len(side) != len(shapes):
        raise RuleError(
            f"the rule {text!r} has {len(side)} {what}s, but the function has {len(shapes)}; name each leaf"
        )
    return list(zip(side, shapes, strict=True))


def _letters(text: str, dim: Dim) -> str:
    """The names that a text gives these factors, which are numbered by first appearance."""
    names = list(dict.fromkeys(re.findall(r"[A-Za-z]\d*", text.split("|")[0])))
    return " ".join(names[factor] for factor in dim)


def _graph_like(like: Any, tree: Any, structs: Sequence[jax.ShapeDtypeStruct], results: Sequence[Any]) -> Graph:
    """The graph of a plain function of these arguments. Raises: RuleError where its results are others."""

    def flat(*values: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(tree, values)
        return jax.tree.leaves(like(*args, **kwargs))

    graph = build_graph(trace(flat, structs))
    found = [graph.tensors[tensor].aval.shape for tensor in graph.outputs]
    if found != [tuple(leaf.shape) for leaf in results]:
        raise RuleError(
            f"like gives results of shapes {found}, the function itself {[tuple(leaf.shape) for leaf in results]}; "
            "give a function of the same results"
        )
    return graph


def _work_like(graph: Graph, name: str) -> KernelWork:
    """The work of a kernel that computes what a plain function does; its memory traffic may be less, and is not told."""
    return KernelWork(
        name=name,
        flops=flops_of(graph),
        bytes=None,
        engine=engine_of(graph),
        guessed=any(guessed_in(graph)),
        attends=any(op.kind in EXPONENTIALS or _attends(op) for op in graph.ops),
    )


def _attends(op: Op) -> bool:
    kernel = kernel_of(op)
    return kernel is not None and kernel.work.attends


def _rule_like(graph: Graph, arguments: int) -> Rule:
    """The rule of a plain function of so many arguments, for a kernel that is run on parts of them."""
    shapes = {tensor.id: tensor.aval.shape for tensor in graph.tensors}
    steps = [
        CompositeStep(
            rule=_on_parts(graph, op, op_rule(graph, op)[0]),
            operands=op.operands,
            results=op.results,
            carries=traits(op.kind).carries,
        )
        for op in graph.ops
    ]
    return compose(steps, shapes, graph.inputs[:arguments], graph.outputs, graph.ties)


def _on_parts(graph: Graph, op: Op, rule: Rule | None) -> Rule | None:
    """What is left of the rule of an op if it is run on parts alone, without a compiler that knows which part."""
    kind, row = op.kind, traits(op.kind)
    if rule is None or kind == "shard_map":
        return None
    # What is made without an operand, such as an iota, depends on where it stands; a broadcast does not. Which updates
    # meet a part of what they are written into depends on it as well.
    arrays = rule.operands[row.updates or 0 :]
    free = {factor for dims in arrays for dim in dims for factor in dim}
    if kind == "broadcast_in_dim":
        free = set(range(len(rule.sizes)))
    # A window that slides over a part needs what lies beyond its borders.
    free -= {f for slide in slides_of(graph, op) for f in rule.operands[image_of(kind)][slide.image_dim]}
    kinds: list[Kind] = []
    for factor, old in enumerate(rule.kinds):
        kinds.append("replicate" if factor not in free or (old == "reduce" and not row.partial_on_parts) else old)
    return Rule(
        operands=rule.operands, results=rule.results, sizes=rule.sizes, kinds=tuple(kinds), combiner=rule.combiner
    )
