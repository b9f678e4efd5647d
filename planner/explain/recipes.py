"""The usual recipes for placing a program, priced on the devices of a plan by the model that made the plan.

    data parallel           what has examples is split along them over all devices, all else is whole on each
    FSDP                    large arrays without examples are stored in parts besides, along their largest dim
    FSDP + tensor parallel  FSDP over one axis of a mesh of two; the other may split any index but that of the examples
    one device              nothing is split

A recipe says how arguments are stored, and with them the results that take their place at the next call. What is computed
between is chosen by the solver for the least seconds, or energy where the plan minimises that, and within the memory limit
where it finds a choice that fits. So each recipe is priced as the best program that its placement allows. The program keeps
the plan's microbatches and saved values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax.sharding import PartitionSpec

from pbqp.deadline import Deadline
from pbqp.options import GAP, SolveOptions
from pbqp.smaller.quotient import solve_shared
from planner.decisions.host_inputs import concluded_inputs
from planner.decisions.logical_dims import LogicalDims
from planner.emit.predict import predict
from planner.errors import InfeasibleError, MeshError
from planner.explain.recipe import Recipe, Recipes, objective_value, why_worse
from planner.prediction import Predicted
from planner.pricing.assignment import Chosen
from planner.pricing.build_instance import state
from planner.pricing.instance import Instance
from planner.pricing.memory.memory_model import MemoryModel
from planner.pricing.mesh import Mesh, Shape
from planner.search.problem import PlanningProblem, terms_of
from planner.search.within_limit import OVER, LimitSearch
from planner.transforms.batch import Refused, batch_of

DATA, MODEL = "data", "model"
SMALL_ELEMENTS = 2**18
"""Arrays of fewer elements are not stored in parts. The figure of the tutorial most people start from:
https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/scaling/JAX/data_parallel_fsdp.html."""
MOST_MESHES = 4
"""Meshes of two axes that are priced: those with the fewest devices along the axis of tensor parallelism."""
FREE_SECONDS, LIMIT_SECONDS = 5.0, 3.0
"""Most seconds for the best choice of a recipe without a memory limit, and for one that fits where that does not."""

Location = tuple[int, ...]
"""For every axis of a mesh the dim that it splits, or -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """The best choice of a recipe on a mesh."""

    chosen: Chosen
    predicted: Predicted
    fits: bool
    value: float


def recipes(problem: PlanningProblem, plan: Chosen) -> Recipes:
    """A plan of the problem beside the recipes; none where the program itself names the mesh that it runs on."""
    return Recipes(
        mesh=plan.instance.mesh.shape,
        predicted=predict(plan, problem.request.topology),
        others=() if problem.program.parallelism is not None else tuple(_Pricing(problem, plan).all()),
    )


class _Pricing:
    """The recipes of one problem, in whose model every argument has a decision of its own, as if it were pinned."""

    def __init__(self, problem: PlanningProblem, plan: Chosen) -> None:
        graph = problem.graph
        arguments = dict.fromkeys(graph.inputs, PartitionSpec())
        analysis = replace(problem.analysis, tensor_pins=arguments, output_pins={}, parts={})
        self._problem, self._graph, self._model = replace(problem, analysis=analysis), graph, analysis.model
        self._dims = LogicalDims(graph, self._model.grouping, self._model.flow)
        self._examples = self._examples_of_arguments()
        self._counted = {i for t, dim in self._examples.items() for i in self._dims.of(t)[dim]}
        self._plan = self._priced(plan)

    def all(self) -> Iterator[Recipe]:
        """All recipes, in the order of the module."""
        n = self._problem.request.topology.num_devices
        if n > 1:
            yield self._recipe("data parallel", [{DATA: n}], stored=False)
            yield self._recipe("FSDP", [{DATA: n}], stored=True)
        meshes = [{DATA: n // model, MODEL: model} for model in range(2, n) if n % model == 0]
        if meshes:
            yield self._recipe("FSDP + tensor parallel", meshes[:MOST_MESHES], stored=True)
        yield self._recipe("one device", [{DATA: 1}], stored=False)

    def _recipe(self, name: str, meshes: Sequence[Shape], *, stored: bool) -> Recipe:
        """A recipe on the best of these meshes, those first on which it fits."""
        found, why = list[_Priced](), ""
        for shape in meshes:
            try:
                found.append(self._best(shape, stored=stored))
            except (MeshError, InfeasibleError) as error:
                why = why or str(error)
        if not found:
            return Recipe(name=name, mesh=meshes[0], predicted=None, fits=False, share=None, why=why)
        one, mine = min(found, key=lambda priced: (not priced.fits, priced.value)), self._plan
        return Recipe(
            name=name,
            mesh=one.chosen.instance.mesh.shape,
            predicted=one.predicted,
            fits=one.fits,
            share=one.value / mine.value if mine.value else None,
            why=why_worse(
                (mine.chosen, mine.predicted), (one.chosen, one.predicted), self._problem.request, fits=one.fits
            ),
        )

    def _best(self, shape: Shape, *, stored: bool) -> _Priced:
        """The best choice of a recipe on a mesh. Raises: MeshError, InfeasibleError."""
        if shape[DATA] > 1 and not self._examples:
            raise InfeasibleError("no dim of its arguments was found that counts examples")
        instance = self._instance(self._problem.mesh(shape), stored=stored)
        limit = self._problem.request.memory_limit
        memory = MemoryModel(instance=instance, apart_above=limit)
        free = solve_shared(instance.problem, _solving(FREE_SECONDS))
        if free.choice is None:
            raise InfeasibleError("no choice was found in the time for it")
        search = LimitSearch(memory, free, limit)
        if search.best is None:
            search.by_prices(_solving(LIMIT_SECONDS), cutoff=math.inf)
        best = search.best or min(search.met, key=lambda met: float(met.profile.max()))
        return self._priced(Chosen(instance=instance, choice=best.choice, apart_above=limit))

    def _priced(self, chosen: Chosen) -> _Priced:
        request = self._problem.request
        predicted = predict(chosen, request.topology)
        return _Priced(
            chosen=chosen,
            predicted=predicted,
            fits=float(chosen.memory.profile(chosen.choice).max()) <= request.memory_limit * OVER,
            value=objective_value(predicted, request.objective, chosen.instance.mesh.num_devices),
        )

    def _instance(self, mesh: Mesh, *, stored: bool) -> Instance:
        """The problem of a recipe on a mesh. Raises: InfeasibleError where examples cannot be split."""
        whole, locations = mesh.locations({}), dict[int, Location]()
        parts = dict[int, Location]()
        for tensor in self._graph.inputs:
            dim = self._stored_dim(tensor, mesh) if stored and tensor not in self._examples else None
            if tensor in self._examples:
                locations[tensor] = mesh.locations({DATA: self._examples_dim(tensor, mesh)})
            elif dim is not None:
                parts[tensor] = mesh.locations({DATA: dim})  # the other axis may split any dim
            else:
                locations[tensor] = whole
        terms = replace(terms_of(self._problem, mesh, ({}, {})), pins=locations, parts=parts)
        instance = state(self._model, terms)
        return self._without_examples_over_model(instance) if MODEL in mesh.names else instance

    def _examples_dim(self, tensor: int, mesh: Mesh) -> int:
        """The dim of an argument that counts examples. Raises: InfeasibleError where the mesh does not divide them."""
        of, dim = self._graph.tensors[tensor], self._examples[tensor]
        parts = dict(mesh.shape).get(DATA, 1)
        if of.aval.shape[dim] % parts:
            raise InfeasibleError(f"the {of.aval.shape[dim]} examples of {of.name} do not split over {parts} devices")
        return dim

    def _stored_dim(self, tensor: int, mesh: Mesh) -> int | None:
        """The largest dim of a large array that can be split; None where there is none."""
        aval, parts = self._graph.tensors[tensor].aval, dict(mesh.shape).get(DATA, 1)
        if aval.size < SMALL_ELEMENTS:
            return None
        dims = [d for d, extent in enumerate(aval.shape) if extent % parts == 0]
        return max(dims, key=lambda d: aval.shape[d], default=None)

    def _without_examples_over_model(self, instance: Instance) -> Instance:
        """The instance without strategies that split examples over the axis of tensor parallelism."""
        axis = instance.mesh.names.index(MODEL)
        kept = list[np.ndarray[tuple[int], np.dtype[np.intp]]]()
        for node, strategies in zip(self._model.flow.nodes, instance.strategies, strict=True):
            counted = [
                f for f in range(strategies.num_factors) if self._counted & set(self._dims.indices(node.id, (f,)))
            ]
            allowed = ~np.isin(strategies.assignment[:, axis], counted)
            kept.append(np.flatnonzero(allowed if allowed.any() else np.ones_like(allowed)))
        return instance.restricted(kept)

    def _examples_of_arguments(self) -> Mapping[int, int]:
        """The dim that counts examples of every argument that has them.

        Those of a program without a state, where data look like parameters, are those of its batch, if that is found.
        """
        program, graph, flow = self._problem.program, self._graph, self._model.flow
        inputs = concluded_inputs(graph, self._model.grouping, flow, program.leaves.values(), program.donated)
        known = {one.tensor: one.examples for one in inputs if one.examples is not None}
        if not known:
            batch = batch_of(program.as_written)
            parts = {} if isinstance(batch, Refused) else batch.parts
            places = ((tensor, parts.get(("invar", (), i))) for i, tensor in enumerate(graph.inputs))
            known = {tensor: part.dim for tensor, part in places if part is not None}
        counted = {i for tensor, dim in known.items() for i in self._dims.of(tensor)[dim]}
        shared = {
            tensor: next((d for d, of in enumerate(self._dims.of(tensor)) if of and set(of) <= counted), None)
            for tensor in graph.inputs
        }
        return {tensor: dim for tensor, dim in shared.items() if dim is not None} | known


def _solving(seconds: float) -> SolveOptions:
    return SolveOptions(deadline=Deadline.after(seconds), gap=GAP)
