"""Serving with a key-value cache: prefill and decode share weights and cache, so they are planned together."""

import jax
import jax.numpy as jnp

import planner

jax.config.update("jax_num_cpu_devices", 8)
BATCH, HEADS, DIM, LENGTH, PROMPT, WORDS = 8, 8, 32, 64, 32, 512
WIDTH = HEADS * DIM


def attend(weights, tokens, cache, start):
    """The logits of the last token of each prompt, and the cache with the new keys and values from `start` on."""
    x = weights["embed"][tokens]
    query, key, value = (jnp.einsum("btw,whd->bthd", x, weights[name]) for name in ("query", "key", "value"))
    cache = {
        "key": jax.lax.dynamic_update_slice_in_dim(cache["key"], key, start, axis=1),
        "value": jax.lax.dynamic_update_slice_in_dim(cache["value"], value, start, axis=1),
    }
    scores = jnp.einsum("bthd,bshd->bhts", query, cache["key"]) / DIM**0.5
    position = start + jnp.arange(tokens.shape[1])
    scores = jnp.where(jnp.arange(LENGTH) <= position[:, None], scores, -jnp.inf)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), cache["value"])
    logits = jnp.einsum("bthd,hdw,vw->btv", mixed, weights["out"], weights["embed"])
    return logits[:, -1], cache


def prefill(weights, cache, prompt):
    logits, cache = attend(weights, prompt, cache, 0)
    return logits.argmax(-1), cache


def decode(weights, cache, token, position):
    logits, cache = attend(weights, token[:, None], cache, position)
    return logits.argmax(-1), cache


def weight(i, *shape):
    return jax.random.normal(jax.random.key(i), shape) * WIDTH**-0.5


weights = {name: weight(i, WIDTH, HEADS, DIM) for i, name in enumerate(("query", "key", "value"))}
weights |= {"out": weight(3, HEADS, DIM, WIDTH), "embed": weight(4, WORDS, WIDTH)}
cache = {name: jnp.zeros((BATCH, LENGTH, HEADS, DIM)) for name in ("key", "value")}
prompt = jnp.arange(BATCH * PROMPT).reshape(BATCH, PROMPT) % WORDS
token = jnp.zeros((BATCH,), jnp.int32)

plans = planner.plan_many(
    {
        "prefill": (prefill, (weights, cache, prompt), {"donate_argnums": 1}),
        "decode": (decode, (weights, cache, token, jnp.int32(PROMPT)), {"donate_argnums": 1}),
    },
    calls={"prefill": 1, "decode": 32},
)
print(plans)

token, cache = plans["prefill"](weights, cache, prompt)
written = [token]
for step in range(8):
    token, cache = plans["decode"](weights, cache, token, jnp.int32(PROMPT + step))
    written.append(token)
print(jnp.stack(written, axis=1)[0])
