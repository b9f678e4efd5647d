"""Learning programs as people write them, at small sizes: what a planner meets beside textbook models.

Each entry of `PROGRAMS` gives (fn, args). Models and losses are written in the styles of linen, nnx, equinox and plain JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax, random

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return scale * random.normal(random.key(seed), shape)


def train(loss: Callable[..., Any], optimiser: optax.GradientTransformation, params: Any, *batch: Any) -> Made:
    """A train step of (params, state, *batch), with its arguments."""

    def step(params: Any, state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimiser.init(params), *batch)


class SwinBlock(nn.Module):
    """Windowed attention with a relative position bias; `shift` rolls the windows and masks what wrapped around."""

    shift: int
    window: int = 4
    heads: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        b, h, w, c = x.shape
        n, s = self.window, self.shift
        y = jnp.roll(nn.LayerNorm()(x), (-s, -s), axis=(1, 2))
        y = y.reshape(b, h // n, n, w // n, n, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)
        q, k, v = jnp.split(nn.Dense(3 * c)(y).reshape(-1, n * n, self.heads, 3 * c // self.heads), 3, axis=-1)
        grid = jnp.stack(jnp.meshgrid(jnp.arange(n), jnp.arange(n), indexing="ij"), -1).reshape(-1, 2)
        offset = grid[:, None] - grid[None] + n - 1
        table = self.param("bias", nn.initializers.normal(0.02), ((2 * n - 1) ** 2, self.heads))
        bias = table[offset[..., 0] * (2 * n - 1) + offset[..., 1]].transpose(2, 0, 1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(c // self.heads) + bias
        region = jnp.zeros((h, w), jnp.int32).at[h - n :].add(1).at[h - s :].add(1) * 3
        region = region.at[:, w - n :].add(1).at[:, w - s :].add(1)
        region = region.reshape(h // n, n, w // n, n).transpose(0, 2, 1, 3).reshape(-1, n * n)
        masked = jnp.where(region[:, :, None] == region[:, None], 0.0, -100.0) if s else jnp.zeros((1, 1, 1))
        scores = scores.reshape(b, -1, self.heads, n * n, n * n) + masked[None, :, None]
        y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores.reshape(-1, self.heads, n * n, n * n)), v)
        y = nn.Dense(c)(y.reshape(-1, n * n, c))
        y = y.reshape(b, h // n, w // n, n, n, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + jnp.roll(y, (s, s), axis=(1, 2))
        return x + nn.Dense(c)(nn.gelu(nn.Dense(2 * c)(nn.LayerNorm()(x))))


class Swin(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(16, (2, 2), strides=(2, 2))(x)
        x = SwinBlock(0)(x)
        x = SwinBlock(2)(x)
        b, h, w, c = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 4, 2, 5).reshape(b, h // 2, w // 2, 4 * c)
        x = SwinBlock(0)(nn.Dense(2 * c, use_bias=False)(nn.LayerNorm()(x)))
        return nn.Dense(8)(x.mean((1, 2)))


def labels(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def swin() -> Made:
    model, x = Swin(), normal(0, 8, 16, 16, 3)
    return train(
        lambda p, x, y: labels(model.apply(p, x), y), optax.adamw(1e-3), model.init(random.key(1), x), x, jnp.arange(8)
    )


class ConvNeXt(nn.Module):
    """Depthwise convolutions, layer scale and stochastic depth."""

    @nn.compact
    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        x = nn.LayerNorm()(nn.Conv(16, (4, 4), strides=(4, 4))(x))
        for depth in range(2):
            y = nn.Conv(16, (7, 7), feature_group_count=16)(x)
            y = nn.Dense(16)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(y))))
            y = y * self.param(f"scale{depth}", nn.initializers.constant(0.1), (16,))
            keep = random.bernoulli(random.fold_in(key, depth), 0.8, (x.shape[0], 1, 1, 1))
            x = x + jnp.where(keep, y / 0.8, 0.0)
        x = nn.Conv(32, (2, 2), strides=(2, 2))(nn.LayerNorm()(x))
        return nn.Dense(8)(nn.LayerNorm()(x.mean((1, 2))))


def convnext() -> Made:
    model, x = ConvNeXt(), normal(0, 8, 32, 32, 3)
    params = model.init(random.key(1), x, random.key(2))

    def loss(p: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy(
            model.apply(p, x, key), optax.smooth_labels(jax.nn.one_hot(y, 8), 0.1)
        ).mean()

    return train(loss, optax.lion(1e-3), params, x, jnp.arange(8), random.key(3))


def unet() -> Made:
    """Equinox, NCHW under vmap, one level with a skip; gradients accumulated by optax.MultiSteps."""
    keys = random.split(random.key(0), 5)
    conv, up = eqx.nn.Conv2d, eqx.nn.ConvTranspose2d
    layers = [
        conv(3, 8, 3, padding=1, key=keys[0]),
        conv(8, 16, 3, stride=2, padding=1, key=keys[1]),
        up(16, 8, 2, stride=2, key=keys[2]),
        conv(16, 8, 3, padding=1, key=keys[3]),
        conv(8, 2, 1, key=keys[4]),
    ]
    params, static = eqx.partition((layers, eqx.nn.GroupNorm(2, 8), eqx.nn.MaxPool2d(2, 2)), eqx.is_array)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        (first, down, up, merge, last), norm, pool = eqx.combine(params, static)
        skip = jax.nn.relu(norm(first(x)))
        inner = jax.nn.relu(down(skip)) + jnp.concatenate([pool(skip), pool(skip)])
        return last(jax.nn.relu(merge(jnp.concatenate([up(inner), skip]))))

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        chance = jax.nn.sigmoid(jax.vmap(lambda x: apply(params, x))(x))
        dice = 2 * (chance * y).sum((2, 3)) / (chance.sum((2, 3)) + y.sum((2, 3)) + 1)
        return 1 - dice.mean()

    x, y = normal(1, 8, 3, 16, 16), (normal(2, 8, 2, 16, 16) > 0).astype(jnp.float32)
    optimiser = optax.MultiSteps(optax.adam(1e-3), every_k_schedule=2).gradient_transformation()
    return train(loss, optimiser, params, x, y)


def wavenet() -> Made:
    """Dilated causal convolutions with gates, skips summed, mu-law classes."""
    width, taps = 16, 2
    params = {
        "embed": normal(0, 32, width),
        "gates": [normal(i + 1, taps, width, 2 * width, scale=0.1) for i in range(4)],
        "out": [normal(i + 9, width, 2 * width, scale=0.1) for i in range(4)],
        "head": normal(20, width, 32, scale=0.1),
    }

    def loss(p: Any, wave: jax.Array) -> jax.Array:
        coded = jnp.sign(wave) * jnp.log1p(31 * jnp.abs(wave)) / jnp.log(32.0)
        classes = jnp.clip(((coded + 1) * 16).astype(jnp.int32), 0, 31)
        x, skips = p["embed"][classes], 0.0
        for i, (gate, out) in enumerate(zip(p["gates"], p["out"], strict=True)):
            padding = [((taps - 1) * 2**i, 0)]
            y = lax.conv_general_dilated(
                x, gate, (1,), padding, rhs_dilation=(2**i,), dimension_numbers=("NWC", "WIO", "NWC")
            )
            inside, opening = jnp.split(y, 2, -1)
            residual, skip = jnp.split((jnp.tanh(inside) * jax.nn.sigmoid(opening)) @ out, 2, -1)
            x, skips = x + residual, skips + skip
        return labels((jax.nn.relu(skips) @ p["head"])[:, :-1], classes[:, 1:])

    return train(loss, optax.adafactor(1e-3), params, jnp.tanh(normal(30, 8, 64)))


def mamba() -> Made:
    """A selective state space by associative_scan, a causal depthwise convolution before it."""
    width, states, classes = 16, 4, 32
    params = {
        "embed": normal(0, classes, width, scale=0.1),
        "in": normal(1, width, 2 * width, scale=0.1),
        "conv": normal(2, 4, 1, width, scale=0.3),
        "dbc": normal(3, width, 1 + 2 * states, scale=0.1),
        "a": jnp.log(jnp.arange(1.0, states + 1)) * jnp.ones((width, 1)),
        "out": normal(4, width, width, scale=0.1),
    }

    def loss(p: Any, ids: jax.Array) -> jax.Array:
        x = p["embed"][ids]
        u, gate = jnp.split(x @ p["in"], 2, -1)
        u = lax.conv_general_dilated(
            u, p["conv"], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=width
        )
        u = jax.nn.silu(u)
        step, b, c = jnp.split(u @ p["dbc"], [1, 1 + states], -1)
        step = jax.nn.softplus(step)[..., None]
        decay = jnp.exp(-step * jnp.exp(p["a"]))
        fed = step * b[:, :, None] * u[..., None]
        _, h = lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, fed), axis=1)
        y = jnp.einsum("btds,bts->btd", h, c) * jax.nn.silu(gate)
        return labels((x + y @ p["out"])[:, :-1] @ p["embed"].T, ids[:, 1:])

    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100)))
    return train(loss, optimiser, params, random.randint(random.key(5), (8, 32), 0, classes))


def beam_search() -> Made:
    """A GRU decoder under while_loop: top-k over beams and vocabulary, beams regathered at every step."""
    batch, beams, classes, width, most = 4, 4, 32, 16, 6
    cell = nnx.GRUCell(width, width, rngs=nnx.Rngs(0))
    graph, params = nnx.split(cell)
    embed = normal(1, classes, width)

    def search(params: Any, embed: jax.Array, context: jax.Array) -> tuple[jax.Array, jax.Array]:
        cell = nnx.merge(graph, params)

        def step(state: Any) -> Any:
            i, tokens, scores, hidden, ended = state
            last = jnp.take_along_axis(tokens, jnp.maximum(i - 1, 0)[None, None, None], axis=2)[..., 0]
            hidden, out = cell(hidden.reshape(-1, width), embed[last].reshape(-1, width))
            chances = jax.nn.log_softmax((out @ embed.T).reshape(batch, beams, classes))
            only_end = jnp.where(jnp.arange(classes) == 0, 0.0, -1e9)
            total = scores[..., None] + jnp.where(ended[..., None], only_end, chances)
            scores, best = lax.top_k(total.reshape(batch, -1), beams)
            beam, token = best // classes, best % classes
            take = jax.vmap(lambda x, b: x[b])
            tokens = take(tokens, beam).at[:, :, i].set(token)
            hidden = take(hidden.reshape(batch, beams, width), beam)
            return i + 1, tokens, scores, hidden, take(ended, beam) | (token == 0)

        start = (
            jnp.int32(0),
            jnp.ones((batch, beams, most), jnp.int32),
            jnp.tile(jnp.where(jnp.arange(beams) == 0, 0.0, -1e9), (batch, 1)),
            jnp.repeat(context[:, None], beams, 1),
            jnp.zeros((batch, beams), bool),
        )
        _, tokens, scores, _, _ = lax.while_loop(lambda s: (s[0] < most) & ~s[4].all(), step, start)
        return tokens, scores

    return search, (params, embed, normal(2, batch, width))


def ppo() -> Made:
    """A rollout by scan in a toy environment, advantages by a reverse scan, epochs over shuffled minibatches."""
    envs, steps, width = 8, 16, 16
    params = {"pi": normal(0, 4, width, scale=0.3), "out": normal(1, width, 2), "v": normal(2, width, 1)}
    optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))

    def net(p: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(obs @ p["pi"])
        return jax.nn.log_softmax(h @ p["out"]), (h @ p["v"])[..., 0]

    def update(params: Any, state: Any, obs: jax.Array, key: jax.Array) -> Any:
        def act(carry: Any, key: jax.Array) -> Any:
            obs = carry
            logp, value = net(params, obs)
            action = random.categorical(key, logp)
            force = jnp.where(action == 1, 0.1, -0.1)
            nxt = obs @ jnp.array([[1, 0, 0, 0], [0.1, 1, 0, 0], [0, 0.1, 1, 0], [0, 0, 0.1, 0.99]]) + force[:, None]
            done = jnp.abs(nxt).max(-1) > 3
            reward = 1.0 - 0.1 * jnp.square(nxt).sum(-1)
            chosen = jnp.take_along_axis(logp, action[:, None], 1)[:, 0]
            return jnp.where(done[:, None], 0.1, nxt), (obs, action, chosen, value, reward, done)

        rolling, shuffling = random.split(key)
        last, (seen, action, logp, value, reward, done) = lax.scan(act, obs, random.split(rolling, steps))

        def advantage(carry: Any, xs: Any) -> Any:
            gae, following = carry
            value, reward, done = xs
            delta = reward + 0.99 * following * (1 - done) - value
            gae = delta + 0.99 * 0.95 * (1 - done) * gae
            return (gae, value), gae

        start = (jnp.zeros(envs), net(params, last)[1])
        _, gae = lax.scan(advantage, start, (value, reward, done.astype(jnp.float32)), reverse=True)
        batch = jax.tree.map(lambda x: x.reshape(envs * steps, *x.shape[2:]), (seen, action, logp, gae, gae + value))

        def loss(p: Any, batch: Any) -> jax.Array:
            seen, action, old, gae, returns = batch
            logp, value = net(p, seen)
            ratio = jnp.exp(jnp.take_along_axis(logp, action[:, None], 1)[:, 0] - old)
            gae = (gae - gae.mean()) / (gae.std() + 1e-8)
            clipped = jnp.minimum(ratio * gae, jnp.clip(ratio, 0.8, 1.2) * gae).mean()
            return -clipped + 0.5 * jnp.square(value - returns).mean() + 0.01 * (jnp.exp(logp) * logp).sum(-1).mean()

        def minibatch(carry: Any, batch: Any) -> Any:
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params, batch)
            updates, state = optimiser.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        def epoch(carry: Any, key: jax.Array) -> Any:
            order = random.permutation(key, envs * steps)
            shuffled = jax.tree.map(lambda x: x[order].reshape(4, -1, *x.shape[1:]), batch)
            return lax.scan(minibatch, carry, shuffled)

        (params, state), losses = lax.scan(epoch, (params, state), random.split(shuffling, 2))
        return params, state, last, losses

    return update, (params, optimiser.init(params), normal(3, envs, 4, scale=0.1), random.key(4))


def quantised_decode() -> Made:
    """int8 weights and int8 cache with scales, rotary positions, top-k and nucleus sampling, steps under scan."""
    batch, length, heads, size, classes = 8, 16, 4, 8, 64
    width = heads * size

    def quantise(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        scale = jnp.abs(w).max(0) / 127
        return jnp.round(w / scale).astype(jnp.int8), scale

    weights = {
        name: quantise(normal(i, width, n)) for i, (name, n) in enumerate({"qkv": 3 * width, "o": width}.items())
    }
    weights["embed"] = quantise(normal(9, width, classes))

    def dot(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
        scale = jnp.abs(x).max(-1, keepdims=True) / 127 + 1e-6
        x8 = jnp.round(x / scale).astype(jnp.int8)
        return lax.dot_general(x8, w[0], (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32) * scale * w[1]

    def rotate(x: jax.Array, at: jax.Array) -> jax.Array:
        angle = at * 10000.0 ** (-jnp.arange(size // 2) / (size // 2))
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)

    def decode(weights: Any, cache: Any, token: jax.Array, key: jax.Array) -> Any:
        def step(carry: Any, key: jax.Array) -> Any:
            (keys, values, scales), token, at = carry
            x = (weights["embed"][0][:, token] * weights["embed"][1][token]).T
            q, k, v = jnp.split(dot(x, weights["qkv"]).reshape(batch, heads, 3 * size), 3, -1)
            q, k = rotate(q, at), rotate(k, at)
            scale = jnp.maximum(jnp.abs(k).max((1, 2)), jnp.abs(v).max((1, 2))) / 127
            k8, v8 = (jnp.round(t / scale[:, None, None]).astype(jnp.int8)[:, None] for t in (k, v))
            keys = lax.dynamic_update_slice(keys, k8, (0, at, 0, 0))
            values = lax.dynamic_update_slice(values, v8, (0, at, 0, 0))
            scales = scales.at[:, at].set(scale)
            scores = jnp.einsum("bhd,bthd->bht", q, keys.astype(jnp.float32)) * scales[:, None] / size**0.5
            scores = jnp.where(jnp.arange(length) <= at, scores, -jnp.inf)
            weighted = jax.nn.softmax(scores) * scales[:, None]
            x = x + dot(
                jnp.einsum("bht,bthd->bhd", weighted, values.astype(jnp.float32)).reshape(batch, -1), weights["o"]
            )
            best, index = lax.top_k(dot(x, weights["embed"]), 16)
            chance = jax.nn.softmax(best)
            kept = jnp.where(jnp.cumsum(chance, -1) - chance < 0.9, best, -jnp.inf)
            token = jnp.take_along_axis(index, random.categorical(key, kept)[:, None], 1)[:, 0]
            return ((keys, values, scales), token, at + 1), token

        (cache, _, _), tokens = lax.scan(step, (cache, token, jnp.int32(0)), random.split(key, 4))
        return tokens.T, cache

    empty = jnp.zeros((batch, length, heads, size), jnp.int8)
    return decode, (weights, (empty, empty, jnp.zeros((batch, length))), jnp.arange(batch), random.key(1))


def speculative_decode() -> Made:
    """A draft proposes, the model scores all proposals at once; as many as agree are kept, under while_loop."""
    length, classes, width, ahead = 24, 32, 16, 3
    weights = {"embed": normal(0, classes, width), "small": normal(1, width, width), "big": normal(2, 2, width, width)}

    def decode(weights: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        def draft(token: jax.Array) -> jax.Array:
            return (weights["embed"][token] @ weights["small"] @ weights["embed"].T).argmax(-1)

        def model(window: jax.Array) -> jax.Array:
            x = weights["embed"][window]
            x = jnp.cumsum(x, 0) / (1 + jnp.arange(window.shape[0]))[:, None] + x
            x, _ = lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, weights["big"])
            return (x @ weights["embed"].T).argmax(-1)

        def one(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
            def more(state: Any) -> Any:
                at, tokens = state
                first = lax.dynamic_index_in_dim(tokens, at - 1, keepdims=False)
                _, proposed = lax.scan(lambda t, _: (draft(t),) * 2, first, None, length=ahead)
                window = jnp.concatenate([first[None], proposed])
                said = model(window)
                agreed = jnp.cumprod((said[:-1] == proposed).astype(jnp.int32)).sum()
                return at + agreed + 1, lax.dynamic_update_slice(tokens, said, (at,))

            return lax.while_loop(lambda s: s[0] < length - ahead - 1, more, (jnp.int32(1), tokens))

        return jax.vmap(one)(tokens)

    return decode, (weights, jnp.zeros((8, length), jnp.int32).at[:, 0].set(jnp.arange(8)))


def loss_scaling() -> Made:
    """float16 compute under float32 weights; a step is skipped by cond where a gradient is not finite."""
    params = {"a": normal(0, 16, 32, scale=0.2), "b": normal(1, 32, 16, scale=0.2)}
    optimiser = optax.sgd(1e-2, momentum=0.9)

    def step(params: Any, state: Any, scale: jax.Array, good: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            half = jax.tree.map(lambda t: t.astype(jnp.float16), p)
            out = jax.nn.gelu(x.astype(jnp.float16) @ half["a"]) @ half["b"]
            return jnp.square(out.astype(jnp.float32) - y).mean() * scale

        grads = jax.tree.map(lambda g: g / scale, jax.grad(loss)(params))
        finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()

        def apply(params: Any, state: Any) -> Any:
            updates, state = optimiser.update(grads, state, params)
            return optax.apply_updates(params, updates), state, jnp.where(good > 9, scale * 2, scale), good + 1

        def skip(params: Any, state: Any) -> Any:
            return params, state, scale / 2, jnp.int32(0)

        return lax.cond(finite, apply, skip, params, state)

    return step, (params, optimiser.init(params), jnp.float32(1024), jnp.int32(0), normal(2, 32, 16), normal(3, 32, 16))


def preference() -> Made:
    """Direct preference optimisation: log-probabilities of chosen and rejected under a policy and a frozen reference."""
    embed, layer = normal(0, 32, 16, scale=0.3), normal(1, 16, 16, scale=0.3)

    def logp(p: Any, ids: jax.Array, mask: jax.Array) -> jax.Array:
        x = jnp.cumsum(p[0][ids], 1) / jnp.arange(1, ids.shape[1] + 1)[:, None]
        each = jax.nn.log_softmax(jnp.tanh(x @ p[1]) @ p[0].T)[:, :-1]
        return (jnp.take_along_axis(each, ids[:, 1:, None], -1)[..., 0] * mask[:, 1:]).sum(-1)

    def loss(p: Any, reference: Any, ids: jax.Array, mask: jax.Array) -> jax.Array:
        chosen, rejected = jnp.split(logp(p, ids, mask) - lax.stop_gradient(logp(reference, ids, mask)), 2)
        return -jax.nn.log_sigmoid(0.1 * (chosen - rejected)).mean()

    ids, ends = random.randint(random.key(2), (16, 16), 0, 32), random.randint(random.key(3), (16,), 8, 16)
    mask = (jnp.arange(16) < ends[:, None]).astype(jnp.float32)
    return train(loss, optax.rmsprop(1e-4), (embed, layer), (embed, layer), ids, mask)


def contrastive() -> Made:
    """Two towers, all pairs of a batch, both directions, the temperature learned."""
    params = {"image": normal(0, 48, 16), "text": normal(1, 32, 16), "t": jnp.float32(1.0)}

    def loss(p: Any, images: jax.Array, texts: jax.Array) -> jax.Array:
        a = images.reshape(images.shape[0], -1) @ p["image"]
        b = p["text"][texts].mean(1)
        a, b = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
        logits = a @ b.T * jnp.exp(p["t"])
        targets = jnp.arange(a.shape[0])
        return (labels(logits, targets) + labels(logits.T, targets)) / 2

    ids = random.randint(random.key(2), (16, 8), 0, 32)
    return train(loss, optax.lamb(1e-3), params, normal(3, 16, 4, 4, 3), ids)


def augment() -> Made:
    """Random crops, flips, rotations by interpolation, colour and cut-outs, per image under vmap."""

    def one(key: jax.Array, image: jax.Array) -> jax.Array:
        k = random.split(key, 6)
        padded = jnp.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        at = random.randint(k[0], (2,), 0, 9)
        image = lax.dynamic_slice(padded, (at[0], at[1], 0), (16, 16, 3))
        image = jnp.where(random.bernoulli(k[1]), image[:, ::-1], image)
        angle = random.uniform(k[2], minval=-0.3, maxval=0.3)
        y, x = jnp.meshgrid(jnp.arange(16.0) - 7.5, jnp.arange(16.0) - 7.5, indexing="ij")
        where = [
            jnp.cos(angle) * y - jnp.sin(angle) * x + 7.5,
            jnp.sin(angle) * y + jnp.cos(angle) * x + 7.5,
        ]
        turn = jax.vmap(lambda c: jax.scipy.ndimage.map_coordinates(c, where, order=1, mode="nearest"), 2, 2)
        image = turn(image) * random.uniform(k[3], (3,), minval=0.8, maxval=1.2)
        image = lax.switch(random.randint(k[4], (), 0, 3), [lambda i: i, lambda i: 1 - i, lambda i: i**2], image)
        corner = random.randint(k[5], (2,), 0, 12)
        return lax.dynamic_update_slice(image, jnp.zeros((4, 4, 3)), (corner[0], corner[1], 0))

    def batch(key: jax.Array, images: jax.Array) -> jax.Array:
        images = jax.vmap(one)(random.split(key, images.shape[0]), images)
        mixed = random.beta(random.fold_in(key, 1), 0.4, 0.4, (images.shape[0], 1, 1, 1))
        images = mixed * images + (1 - mixed) * images[::-1]
        return jax.image.resize(images, (images.shape[0], 8, 8, 3), "bilinear")

    return batch, (random.key(0), random.uniform(random.key(1), (8, 16, 16, 3)))


def graph_attention() -> Made:
    """Attention over edges: segment maxima and sums, two layers, masked node labels."""
    nodes, edges, width = 32, 128, 16
    params = [(normal(i, width, width, scale=0.3), normal(i + 5, 2 * width, scale=0.3)) for i in range(2)]

    def loss(p: Any, x: jax.Array, senders: jax.Array, receivers: jax.Array, y: jax.Array) -> jax.Array:
        for w, a in p:
            h = x @ w
            score = jax.nn.leaky_relu(jnp.concatenate([h[senders], h[receivers]], -1) @ a)
            top = jax.ops.segment_max(score, receivers, nodes)
            weight = jnp.exp(score - jnp.where(jnp.isfinite(top), top, 0.0)[receivers])
            total = jax.ops.segment_sum(weight, receivers, nodes)
            x = jax.nn.elu(jax.ops.segment_sum(h[senders] * (weight / total[receivers])[:, None], receivers, nodes))
        return jnp.where(y >= 0, optax.softmax_cross_entropy_with_integer_labels(x, jnp.maximum(y, 0)), 0.0).mean()

    sides = [random.randint(random.key(i), (edges,), 0, nodes) for i in (7, 8)]
    targets = jnp.where(jnp.arange(nodes) % 2 == 0, jnp.arange(nodes) % width, -1)
    return train(loss, optax.adam(1e-3), params, normal(9, nodes, width), *sides, targets)


def vector_quantised() -> Made:
    """Nearest codes with a straight-through gradient, the codebook as moving averages by segment_sum."""
    params = {"enc": normal(0, 16, 8), "dec": normal(1, 8, 16)}
    optimiser = optax.adam(1e-3)

    def step(params: Any, state: Any, book: jax.Array, counts: jax.Array, x: jax.Array) -> Any:
        def loss(p: Any) -> Any:
            z = x @ p["enc"]
            code = (jnp.square(z).sum(1)[:, None] - 2 * z @ book.T + jnp.square(book).sum(1)).argmin(1)
            q = z + lax.stop_gradient(book[code] - z)
            commit = 0.25 * jnp.square(z - lax.stop_gradient(book[code])).mean()
            return jnp.square(q @ p["dec"] - x).mean() + commit, (z, code)

        (value, (z, code)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        counts = 0.99 * counts + 0.01 * jax.ops.segment_sum(jnp.ones(x.shape[0]), code, book.shape[0])
        book = 0.99 * book + 0.01 * jax.ops.segment_sum(z, code, book.shape[0]) / (counts[:, None] + 1e-5)
        updates, state = optimiser.update(grads, state, params)
        perplexity = jnp.exp(-jnp.sum(counts / counts.sum() * jnp.log(counts / counts.sum() + 1e-9)))
        return optax.apply_updates(params, updates), state, book, counts, value, perplexity

    return step, (params, optimiser.init(params), normal(2, 32, 8), jnp.ones(32), normal(3, 64, 16))


def private_gradients() -> Made:
    """Gradients per example, clipped one by one, noise added."""
    model = nnx.Sequential(nnx.Linear(16, 32, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(32, 8, rngs=nnx.Rngs(1)))
    graph, params = nnx.split(model)

    def step(params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
        def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(nnx.merge(graph, p)(x), y)

        grads = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
        leaves, tree = jax.tree.flatten(grads)
        norms = jnp.sqrt(sum(jnp.square(g).reshape(g.shape[0], -1).sum(1) for g in leaves))
        factor = jnp.minimum(1.0, 1.0 / (norms + 1e-6))
        summed = [jnp.einsum("b...,b->...", g, factor) for g in leaves]
        noisy = [g + random.normal(random.fold_in(key, i), g.shape) for i, g in enumerate(summed)]
        return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, jax.tree.unflatten(tree, noisy)), norms

    return step, (params, normal(2, 32, 16), jnp.arange(32) % 8, random.key(3))


def meta_learning() -> Made:
    """Gradients through the inner steps of many tasks (MAML)."""
    params = (normal(0, 4, 32, scale=0.5), normal(1, 32, 4, scale=0.5))

    def fit(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.square(jnp.sin(x @ p[0]) @ p[1] - y).mean()

    def task(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def inner(p: Any, _: None) -> Any:
            return jax.tree.map(lambda w, g: w - 0.05 * g, p, jax.grad(fit)(p, x[:8], y[:8])), None

        return fit(lax.scan(inner, p, None, length=3)[0], x[8:], y[8:])

    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.vmap(task, (None, 0, 0))(p, x, y).mean()

    return train(loss, optax.adam(1e-3), params, normal(2, 8, 16, 4), normal(3, 8, 16, 4))


def fourier_operator() -> Made:
    """A Fourier neural operator: complex weights on the low modes of an rfft2."""
    width, modes = 8, 4
    params = {
        "lift": normal(0, 1, width),
        "spectral": [normal(i, 2, modes, modes, width, width, scale=0.1) for i in (1, 2)],
        "local": [normal(i, width, width, scale=0.3) for i in (3, 4)],
        "out": normal(5, width, 1),
    }

    def loss(p: Any, a: jax.Array, u: jax.Array) -> jax.Array:
        x = a @ p["lift"]
        for s, w in zip(p["spectral"], p["local"], strict=True):
            ft = jnp.fft.rfft2(x, axes=(1, 2))
            low = jnp.einsum("bxyi,xyio->bxyo", ft[:, :modes, :modes], s[0] + 1j * s[1])
            ft = jnp.zeros_like(ft).at[:, :modes, :modes].set(low)
            x = jax.nn.gelu(jnp.fft.irfft2(ft, s=x.shape[1:3], axes=(1, 2)) + x @ w)
        out = x @ p["out"]
        return (jnp.linalg.norm((out - u).reshape(8, -1), axis=1) / jnp.linalg.norm(u.reshape(8, -1), axis=1)).mean()

    return train(loss, optax.adamw(1e-3), params, normal(6, 8, 16, 16, 1), normal(7, 8, 16, 16, 1))


def chunked_attention() -> Made:
    """Linear attention with decay, chunk by chunk: a state carried by scan beside attention inside each chunk."""
    b, t, h, d, chunk = 4, 32, 4, 8, 8

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        q, k, v = jnp.einsum("btm,mchd->cbthd", x, w).reshape(3, b, t // chunk, chunk, h, d).transpose(0, 2, 1, 4, 3, 5)
        decay = 1 - 2.0 ** (-1 - jnp.arange(h, dtype=jnp.float32))
        since = jnp.arange(chunk)[:, None] - jnp.arange(chunk)
        inner = jnp.where(since >= 0, decay[:, None, None] ** since, 0.0)
        into = decay[:, None] ** jnp.arange(1, chunk + 1)

        @jax.checkpoint
        def step(s: jax.Array, qkv: Any) -> Any:
            q, k, v = qkv
            near = jnp.einsum("bhqd,bhkd,hqk,bhke->bhqe", q, k, inner, v)
            far = jnp.einsum("bhqd,bhde,hq->bhqe", q, s, into)
            s = s * (decay**chunk)[:, None, None] + jnp.einsum("bhkd,bhke,hk->bhde", k, v, into[:, ::-1])
            return s, near + far

        _, out = lax.scan(step, jnp.zeros((b, h, d, d)), (q, k, v))
        return jnp.square(out / (jnp.abs(out).max(-1, keepdims=True) + 1)).sum()

    return jax.value_and_grad(loss, argnums=(0, 1)), (normal(0, 32, 3, h, d, scale=0.2), normal(1, b, t, 32))


def preconditioned() -> Made:
    """Second-order steps: Kronecker factors kept, their inverse fourth roots by eigh every other step (cond)."""
    params = {"a": normal(0, 16, 32, scale=0.3), "b": normal(1, 32, 8, scale=0.3)}
    factors = jax.tree.map(lambda w: (jnp.eye(w.shape[0]), jnp.eye(w.shape[1])), params)

    def root(m: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(m + 1e-3 * jnp.eye(m.shape[0]))
        return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

    def step(params: Any, factors: Any, roots: Any, count: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        grads = jax.grad(lambda p: labels(jnp.tanh(x @ p["a"]) @ p["b"], y))(params)
        factors = {k: (a + grads[k] @ grads[k].T, b + grads[k].T @ grads[k]) for k, (a, b) in factors.items()}
        roots = lax.cond(count % 2 == 0, lambda f: jax.tree.map(root, f), lambda _: roots, factors)
        params = {k: w - 0.1 * roots[k][0] @ grads[k] @ roots[k][1] for k, w in params.items()}
        return params, factors, roots, count + 1

    return step, (params, factors, factors, jnp.int32(0), normal(2, 32, 16), jnp.arange(32) % 8)


def replay_learning() -> Made:
    """Double Q-learning from a ring buffer: writes at a moving place, samples by index, a target by moving average."""
    size, width = 64, 16
    params = (normal(0, 4, width, scale=0.3), normal(1, width, 3, scale=0.3))
    optimiser = optax.adam(1e-3)

    def q(p: Any, s: jax.Array) -> jax.Array:
        return jax.nn.relu(s @ p[0]) @ p[1]

    def step(params: Any, target: Any, state: Any, buffer: Any, at: jax.Array, new: Any, key: jax.Array) -> Any:
        buffer = jax.tree.map(lambda b, n: lax.dynamic_update_slice_in_dim(b, n, at, 0), buffer, new)
        s, a, r, n = jax.tree.map(lambda b: b[random.randint(key, (16,), 0, size)], buffer)

        def loss(p: Any) -> jax.Array:
            best = q(p, n).argmax(-1)
            aim = r + 0.99 * jnp.take_along_axis(q(target, n), best[:, None], 1)[:, 0]
            error = jnp.take_along_axis(q(p, s), a[:, None], 1)[:, 0] - lax.stop_gradient(aim)
            return optax.huber_loss(error).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, target, 0.005), state, buffer, (at + 8) % size, value

    def transitions(n: int) -> Any:
        return normal(n, n, 4), jnp.arange(n) % 3, normal(n + 1, n), normal(n + 2, n, 4)

    start = (params, params, optimiser.init(params), transitions(size), jnp.int32(8), transitions(8), random.key(5))
    return step, start


def speech() -> Made:
    """Short-time spectra, a bidirectional LSTM and the CTC loss."""
    both = nn.Sequential([nn.Bidirectional(nn.RNN(nn.LSTMCell(16)), nn.RNN(nn.LSTMCell(16))), nn.Dense(12)])
    params = both.init(random.key(0), jnp.zeros((8, 16, 17)))

    def loss(p: Any, wave: jax.Array, text: jax.Array, padding: jax.Array) -> jax.Array:
        frames = wave[:, jnp.arange(16)[:, None] * 16 + jnp.arange(32)] * jnp.hanning(32)
        logits = both.apply(p, jnp.log1p(jnp.abs(jnp.fft.rfft(frames))))
        return optax.ctc_loss(logits, jnp.zeros((8, 16)), text, padding).mean()

    text = random.randint(random.key(1), (8, 6), 1, 12)
    padding = (jnp.arange(6) >= jnp.arange(8)[:, None] % 4 + 2).astype(jnp.float32)
    return train(loss, optax.nadam(1e-3), params, normal(2, 8, 272), text, padding)


PROGRAMS: Mapping[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        augment,
        beam_search,
        chunked_attention,
        contrastive,
        convnext,
        fourier_operator,
        graph_attention,
        loss_scaling,
        mamba,
        meta_learning,
        ppo,
        preconditioned,
        preference,
        private_gradients,
        quantised_decode,
        replay_learning,
        speculative_decode,
        speech,
        swin,
        unet,
        vector_quantised,
        wavenet,
    )
}
