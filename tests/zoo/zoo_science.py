"""Numerical and statistical programs as people write them, at small sizes; each entry of `PROGRAMS` gives (fn, args)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.experimental import checkify, sparse
from jax.experimental.ode import odeint
from jax.scipy.optimize import minimize
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return scale * random.normal(random.key(seed), shape)


def positive(seed: int, *shape: int) -> jax.Array:
    """Symmetric positive definite matrices of condition number about 10."""
    a = normal(seed, *shape, shape[-1])
    return a @ jnp.swapaxes(a, -1, -2) / shape[-1] + jnp.eye(shape[-1])


def k_means() -> Made:
    def lloyd(points: jax.Array, centres: jax.Array) -> Any:
        def step(state: Any) -> Any:
            centres, _, i = state
            nearest = jnp.square(points[:, None] - centres).sum(-1).argmin(1)
            counts = jnp.bincount(nearest, length=centres.shape[0])
            sums = jax.ops.segment_sum(points, nearest, centres.shape[0])
            new = jnp.where(counts[:, None] > 0, sums / jnp.maximum(counts, 1)[:, None], centres)
            return new, jnp.abs(new - centres).max(), i + 1

        return lax.while_loop(lambda s: (s[1] > 1e-4) & (s[2] < 10), step, (centres, jnp.inf, 0))

    return lloyd, (normal(0, 64, 8), normal(1, 8, 8))


def mixture() -> Made:
    """Expectation maximisation of Gaussians with full covariances."""

    def fit(x: jax.Array, means: jax.Array) -> Any:
        k, d = means.shape

        def step(theta: Any, _: None) -> Any:
            weights, means, covariances = theta
            chol = jnp.linalg.cholesky(covariances)
            whitened = jax.vmap(lambda c, m: jax.scipy.linalg.solve_triangular(c, (x - m).T, lower=True))(chol, means)
            logdet = jnp.log(jnp.diagonal(chol, axis1=1, axis2=2)).sum(1)
            joint = jnp.log(weights) - logdet - jnp.square(whitened).sum(1).T / 2
            r = jax.nn.softmax(joint, 1)
            n = r.sum(0)
            means = r.T @ x / n[:, None]
            centred = x[None] - means[:, None]
            covariances = jnp.einsum("nk,kni,knj->kij", r, centred, centred) / n[:, None, None] + 1e-2 * jnp.eye(d)
            return (n / x.shape[0], means, covariances), jax.nn.logsumexp(joint, 1).mean()

        return lax.scan(step, (jnp.ones(k) / k, means, jnp.tile(jnp.eye(d), (k, 1, 1))), None, length=4)

    return fit, (normal(0, 128, 4), normal(1, 8, 4))


def kalman() -> Made:
    """Filtering by associative_scan over elements of small matrices, smoothing by a reverse scan."""

    def combine(left: Any, right: Any) -> Any:
        a1, b1, c1, e1, j1 = left
        a2, b2, c2, e2, j2 = right
        eye = jnp.eye(a1.shape[-1])
        t = jnp.swapaxes
        gain = t(jnp.linalg.solve(t(eye + c1 @ j2, -1, -2), t(a2, -1, -2)), -1, -2)
        back = t(jnp.linalg.solve(t(eye + j2 @ c1, -1, -2), a1), -1, -2)
        a = gain @ a1
        b = jnp.einsum("tij,tj->ti", gain, b1 + jnp.einsum("tij,tj->ti", c1, e2)) + b2
        c = gain @ c1 @ t(a2, -1, -2) + c2
        e = jnp.einsum("tij,tj->ti", back, e2 - jnp.einsum("tij,tj->ti", j2, b1)) + e1
        return a, b, c, e, back @ j2 @ a1 + j1

    def run(f: jax.Array, h: jax.Array, ys: jax.Array) -> Any:
        steps, d = ys.shape[0], f.shape[0]
        q, r = 0.1 * jnp.eye(d), 0.5 * jnp.eye(h.shape[0])
        s = jnp.linalg.inv(h @ q @ h.T + r)
        k = q @ h.T @ s
        a = jnp.tile((jnp.eye(d) - k @ h) @ f, (steps, 1, 1))
        b = ys @ k.T
        c = jnp.tile((jnp.eye(d) - k @ h) @ q, (steps, 1, 1))
        e = ys @ (f.T @ h.T @ s).T
        j = jnp.tile(f.T @ h.T @ s @ h @ f, (steps, 1, 1))
        _, means, covariances, _, _ = lax.associative_scan(combine, (a, b, c, e, j))

        def smooth(later: Any, here: Any) -> Any:
            m, p = here
            predicted = f @ p @ f.T + q
            g = jax.scipy.linalg.solve(predicted, f @ p, assume_a="pos").T
            m = m + g @ (later[0] - f @ m)
            p = p + g @ (later[1] - predicted) @ g.T
            return (m, p), (m, jnp.diagonal(p))

        last = (means[-1], covariances[-1])
        return lax.scan(smooth, last, (means[:-1], covariances[:-1]), reverse=True)[1]

    return run, (jnp.eye(4) + normal(0, 4, 4, scale=0.05), normal(1, 2, 4), normal(2, 32, 2))


def particle_in_cell() -> Made:
    """Charge put on a grid by scatter-add, the field by a Fourier solve, forces gathered back; a leapfrog scan."""
    cells = 16

    def run(x: jax.Array, v: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            x, v = state
            base = jnp.floor(x).astype(jnp.int32)
            part = x - base
            rho, weights = jnp.zeros((cells, cells)), []
            for i in (0, 1):
                for j in (0, 1):
                    w = jnp.abs(1 - i - part[:, 0]) * jnp.abs(1 - j - part[:, 1])
                    at = ((base[:, 0] + i) % cells, (base[:, 1] + j) % cells)
                    rho = rho.at[at].add(w)
                    weights.append((at, w))
            k = 2 * jnp.pi * jnp.fft.fftfreq(cells)
            k2 = jnp.square(k)[:, None] + jnp.square(k) + jnp.eye(cells)[0][:, None] * jnp.eye(cells)[0]
            phi = jnp.fft.fft2(rho - rho.mean()) / k2
            field = jnp.stack([-jnp.fft.ifft2(1j * kk * phi).real for kk in (k[:, None], k[None])], -1)
            force = sum(field[at] * w[:, None] for at, w in weights)
            v = v + 0.1 * force
            return ((x + 0.1 * v) % cells, v), (jnp.square(field).sum(), jnp.square(v).sum())

        return lax.scan(step, (x, v), None, length=3)

    return run, (random.uniform(random.key(0), (64, 2), maxval=cells - 0.01), normal(1, 64, 2))


def molecules() -> Made:
    """Lennard-Jones dynamics: neighbour lists by sorting distances, forces by grad, Langevin noise."""
    side = 6.0

    def energy(x: jax.Array, near: jax.Array) -> jax.Array:
        d = x[:, None] - x[near]
        d = d - side * jnp.round(d / side)
        r2 = jnp.square(d).sum(-1)
        s6 = (1 / jnp.maximum(r2, 0.7)) ** 3
        return jnp.where(r2 < 6.25, 2 * (s6 * s6 - s6), 0.0).sum()

    def run(x: jax.Array, v: jax.Array, key: jax.Array) -> Any:
        gap = x[:, None] - x
        gap = gap - side * jnp.round(gap / side)
        distances = jnp.square(gap).sum(-1) + 1e9 * jnp.eye(x.shape[0])
        near = jnp.argsort(distances, axis=1)[:, :12]

        def step(state: Any, key: jax.Array) -> Any:
            x, v, f = state
            v = v + 0.0025 * f
            x = (x + 0.005 * v) % side
            e, grad = jax.value_and_grad(energy)(x, near)
            v = 0.99 * (v - 0.0025 * grad) + 0.1 * random.normal(key, v.shape)
            return (x, v, -grad), (e, jnp.square(v).sum() / 2)

        return lax.scan(step, (x, v, -jax.grad(energy)(x, near)), random.split(key, 3))

    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(4.0)] * 3, indexing="ij"), -1).reshape(-1, 3) * 1.5
    return run, (grid, normal(0, 64, 3), random.key(1))


def krylov() -> Made:
    """Gradients through conjugate gradients, GMRES and BiCGSTAB (custom_linear_solve)."""

    def loss(a: jax.Array, b: jax.Array, skew: jax.Array) -> jax.Array:
        x = cg(lambda v: a @ v, b, maxiter=20)[0]
        y = gmres(lambda v: (a + skew) @ v, b, restart=8, maxiter=3)[0]
        z = bicgstab(lambda v: (a + skew) @ v, b, maxiter=20)[0]
        return jnp.square(x).sum() + jnp.vdot(y, b) + jnp.square(z).sum()

    return jax.value_and_grad(loss, (0, 1)), (positive(0, 16), normal(1, 16), normal(2, 16, 16, scale=0.1))


def implicit() -> Made:
    """A batch of fixed points, differentiated by the implicit function theorem in a custom_vjp."""

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def fixed(f: Any, a: Any, start: jax.Array) -> jax.Array:
        return lax.while_loop(
            lambda s: (jnp.abs(s[0] - s[1]).max() > 1e-6) & (s[2] < 50),
            lambda s: (s[1], f(a, s[1]), s[2] + 1),
            (start, f(a, start), 0),
        )[1]

    def forward(f: Any, a: Any, start: jax.Array) -> Any:
        found = fixed(f, a, start)
        return found, (a, found)

    def backward(f: Any, saved: Any, bar: jax.Array) -> Any:
        a, found = saved
        _, pull = jax.vjp(lambda a: f(a, found), a)
        _, pull_x = jax.vjp(lambda x: f(a, x), found)
        u = fixed(lambda bar, u: bar + pull_x(u)[0], bar, bar)
        return pull(u)[0], jnp.zeros_like(found)

    fixed.defvjp(forward, backward)

    def loss(a: Any, x: jax.Array) -> jax.Array:
        z = fixed(lambda a, z: jnp.tanh(z @ a[0] + x @ a[1]), a, jnp.zeros_like(x))
        return jnp.square(z).mean()

    return jax.value_and_grad(loss), ((normal(0, 16, 16, scale=0.1), normal(1, 16, 16)), normal(2, 8, 16))


def decompositions() -> Made:
    """The linear algebra of jax.numpy and jax.scipy on batches, by results that do not hang on signs."""

    def run(a: jax.Array, s: jax.Array, b: jax.Array) -> Any:
        q, r = jnp.linalg.qr(a)
        u, sv, vt = jnp.linalg.svd(a, full_matrices=False)
        values, vectors = jnp.linalg.eigh(s)
        lu, pivots = jax.scipy.linalg.lu_factor(s)
        sign, logdet = jnp.linalg.slogdet(s)
        return {
            "qr": q @ r,
            "svd": (u * sv[..., None, :]) @ vt,
            "values": (sv, values),
            "eigh": (vectors * values[..., None, :]) @ jnp.swapaxes(vectors, -1, -2),
            "lu": jax.vmap(lambda lu, p, b: jax.scipy.linalg.lu_solve((lu, p), b))(lu, pivots, b),
            "det": (sign, logdet, jnp.linalg.det(s)),
            "expm": jax.vmap(jax.scipy.linalg.expm)(s / 4),
            "pinv": jnp.linalg.pinv(a),
            "least squares": jax.vmap(lambda a, b: jnp.linalg.lstsq(a, b)[0])(a, jnp.concatenate([b, b], 1)),
            "power": jnp.linalg.matrix_power(s, 3),
            "norm": (jnp.linalg.norm(a, axis=(1, 2)), jnp.linalg.norm(a, ord=2, axis=(1, 2)), jnp.linalg.cond(s)),
            "kron": jax.vmap(jnp.kron)(s[:, :2, :2], s[:, :2, :2]),
            "gradient": jax.grad(lambda s: jnp.linalg.slogdet(s)[1].sum() + jnp.linalg.eigvalsh(s).max())(s),
        }

    return run, (normal(0, 8, 16, 8), positive(1, 8, 8), normal(2, 8, 8, 2))


def sparse_products() -> Made:
    """A BCOO matrix times dense ones, its gradient, and powers of a walk on it."""

    def loss(data: jax.Array, indices: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        m = sparse.BCOO((data, indices), shape=(32, 32))
        h = jax.nn.relu(m @ (x @ w))
        return jnp.square(m @ h).mean() + (m.T @ x).sum()

    at = random.randint(random.key(0), (96, 2), 0, 32)
    return jax.value_and_grad(loss, (0, 3)), (normal(1, 96), at, normal(2, 32, 16), normal(3, 16, 16))


def adjoint_ode() -> Made:
    """Gradients of an adaptive Runge-Kutta solution by its adjoint."""

    def loss(w: Any, y0: jax.Array, ts: jax.Array, ys: jax.Array) -> jax.Array:
        path = odeint(lambda y, t, w: jnp.tanh(y @ w[0]) @ w[1] + jnp.sin(t), y0, ts, w, rtol=1e-4, atol=1e-4)
        return jnp.square(path - ys).mean()

    w = (normal(0, 4, 16, scale=0.3), normal(1, 16, 4, scale=0.3))
    return jax.value_and_grad(loss), (w, normal(2, 8, 4), jnp.linspace(0.0, 1.0, 4), normal(3, 4, 8, 4))


def tempered_chains() -> Made:
    """Hamiltonian Monte Carlo at many temperatures, neighbours swapped."""

    def potential(q: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softplus(x @ q) - y * (x @ q)) + jnp.square(q).sum() / 2

    def run(q: jax.Array, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        betas = jnp.linspace(1.0, 0.2, q.shape[0])

        def one(q: jax.Array, key: jax.Array, beta: jax.Array) -> Any:
            a, b = random.split(key)
            start = random.normal(a, q.shape)

            def leap(_: int, s: Any) -> Any:
                q, p = s
                p = p - 0.01 * beta * jax.grad(potential)(q, x, y)
                q = q + 0.02 * p
                return q, p - 0.01 * beta * jax.grad(potential)(q, x, y)

            new, p = lax.fori_loop(0, 3, leap, (q, start))
            before = beta * potential(q, x, y) + jnp.square(start).sum() / 2
            after = beta * potential(new, x, y) + jnp.square(p).sum() / 2
            taken = jnp.log(random.uniform(b)) < before - after
            return jnp.where(taken, new, q), taken

        def step(q: jax.Array, key: jax.Array) -> Any:
            a, b = random.split(key)
            q, taken = jax.vmap(one)(q, random.split(a, q.shape[0]), betas)
            e = jax.vmap(potential, (0, None, None))(q, x, y)
            i = jnp.arange(q.shape[0])
            other = i ^ 1
            chance = (betas - betas[other]) * (e - e[other])
            swapped = jnp.log(random.uniform(b, (q.shape[0] // 2,)))[i // 2] < chance
            return jnp.where(swapped[:, None], q[other], q), (taken, e)

        return lax.scan(step, q, random.split(key, 3))

    return run, (normal(0, 8, 4), random.key(1), normal(2, 32, 4), (normal(3, 32) > 0).astype(jnp.float32))


def waves() -> Made:
    """Seismic inversion: a second-order stencil by slices of a padded field, sources scattered in, checkpointed scan."""

    def simulate(speed: jax.Array, sources: jax.Array, signal: jax.Array) -> jax.Array:
        @jax.checkpoint
        def step(state: Any, s: jax.Array) -> Any:
            before, now = state
            p = jnp.pad(now, ((0, 0), (1, 1), (1, 1)))
            laplacian = p[:, 2:, 1:-1] + p[:, :-2, 1:-1] + p[:, 1:-1, 2:] + p[:, 1:-1, :-2] - 4 * now
            after = 2 * now - before + 0.1 * jnp.square(speed) * laplacian
            after = after.at[jnp.arange(after.shape[0]), sources[:, 0], sources[:, 1]].add(s)
            return (now, after), after[:, 2]

        zero = jnp.zeros((sources.shape[0], *speed.shape))
        return lax.scan(step, (zero, zero), signal)[1]

    def loss(speed: jax.Array, sources: jax.Array, signal: jax.Array, seen: jax.Array) -> jax.Array:
        return jnp.square(simulate(speed, sources, signal) - seen).sum()

    at = random.randint(random.key(0), (8, 2), 4, 12)
    return jax.value_and_grad(loss), (1 + normal(1, 16, 16, scale=0.05), at, normal(2, 8), normal(3, 8, 8, 16))


def alignment() -> Made:
    """Soft Smith-Waterman by anti-diagonals and Viterbi with its path by a reverse scan."""

    def score(s: jax.Array) -> jax.Array:
        n, m = s.shape
        i = jnp.arange(n)
        skewed = jnp.where(
            (jnp.arange(n + m - 1)[:, None] - i >= 0) & (jnp.arange(n + m - 1)[:, None] - i < m), 0.0, -1e9
        )
        skewed = skewed + s[i, jnp.clip(jnp.arange(n + m - 1)[:, None] - i, 0, m - 1)]

        def step(carry: Any, row: jax.Array) -> Any:
            two, one = carry
            up = jnp.concatenate([jnp.full(1, -1e9), one[:-1]])
            diagonal = jnp.concatenate([jnp.zeros(1), two[:-1]])
            new = jax.nn.logsumexp(jnp.stack([diagonal + row, up - 1, one - 1, jnp.zeros(n)]), axis=0)
            return (one, new), new

        return jax.nn.logsumexp(lax.scan(step, (jnp.full(n, -1e9),) * 2, skewed)[1])

    def viterbi(emissions: jax.Array, moves: jax.Array) -> jax.Array:
        def step(best: jax.Array, e: jax.Array) -> Any:
            each = best[:, None] + moves
            return each.max(0) + e, each.argmax(0)

        last, back = lax.scan(step, emissions[0], emissions[1:])
        _, path = lax.scan(lambda s, b: (b[s], b[s]), last.argmax(), back, reverse=True)
        return path

    def run(s: jax.Array, emissions: jax.Array, moves: jax.Array) -> Any:
        return jax.vmap(jax.grad(score))(s), jax.vmap(viterbi, (0, None))(emissions, moves)

    return run, (normal(0, 8, 8, 6), normal(1, 8, 16, 4), normal(2, 4, 4))


def american_option() -> Made:
    """Monte Carlo paths, an early-exercise rule regressed backwards by least squares, and its sensitivities."""

    def price(spot: jax.Array, vol: jax.Array, key: jax.Array) -> jax.Array:
        steps, dt = 8, 1 / 8
        noise = random.normal(key, (steps, 128))
        noise = jnp.concatenate([noise, -noise], 1)
        paths = spot * jnp.exp(jnp.cumsum((0.03 - vol**2 / 2) * dt + vol * dt**0.5 * noise, 0))
        payoff = jnp.maximum(1.0 - paths, 0.0)

        def back(cash: jax.Array, xs: Any) -> Any:
            s, now = xs
            cash = cash * jnp.exp(-0.03 * dt)
            basis = jnp.stack([jnp.ones_like(s), s, s * s], 1) * (now > 0)[:, None]
            weights = jnp.linalg.solve(basis.T @ basis + 1e-4 * jnp.eye(3), basis.T @ cash)
            return jnp.where((now > lax.stop_gradient(basis @ weights)) & (now > 0), now, cash), None

        return lax.scan(back, payoff[-1], (paths[:-1], payoff[:-1]), reverse=True)[0].mean()

    def book(spots: jax.Array, vols: jax.Array, key: jax.Array) -> Any:
        return jax.vmap(jax.value_and_grad(price, (0, 1)), (0, 0, None))(spots, vols, key)

    return book, (jnp.linspace(0.8, 1.2, 8), jnp.linspace(0.1, 0.4, 8), random.key(0))


def transport() -> Made:
    """Entropic optimal transport in the log domain, iterated to a tolerance; the plan's barycentres."""

    def sinkhorn(x: jax.Array, y: jax.Array, a: jax.Array, b: jax.Array) -> Any:
        cost = jnp.square(x).sum(1)[:, None] + jnp.square(y).sum(1) - 2 * x @ y.T

        def step(state: Any) -> Any:
            f, g, _, i = state
            f = -0.5 * jax.nn.logsumexp((g - cost) / 0.5 + jnp.log(b), 1)
            new = -0.5 * jax.nn.logsumexp((f[:, None] - cost) / 0.5 + jnp.log(a)[:, None], 0)
            return f, new, jnp.abs(new - g).max(), i + 1

        start = (jnp.zeros(x.shape[0]), jnp.zeros(y.shape[0]), jnp.inf, 0)
        f, g, error, _ = lax.while_loop(lambda s: (s[2] > 1e-3) & (s[3] < 20), step, start)
        plan = jnp.exp((f[:, None] + g - cost) / 0.5) * a[:, None] * b
        return (plan * cost).sum(), plan @ y / plan.sum(1, keepdims=True), error

    return sinkhorn, (normal(0, 32, 4), normal(1, 16, 4) + 1, jnp.ones(32) / 32, jnp.ones(16) / 16)


def radiance() -> Made:
    """Volume rendering along rays with importance samples by searchsorted, gradients of the field."""

    def field(p: Any, x: jax.Array) -> Any:
        code = jnp.concatenate([f(x * 2.0**i) for i in range(3) for f in (jnp.sin, jnp.cos)], -1)
        out = jax.nn.relu(code @ p[0]) @ p[1]
        return jax.nn.softplus(out[..., 0]), jax.nn.sigmoid(out[..., 1:])

    def render(p: Any, origin: jax.Array, way: jax.Array, t: jax.Array) -> Any:
        density, colour = field(p, origin[:, None] + way[:, None] * t[..., None])
        gaps = jnp.diff(t, axis=1, append=t[:, -1:] + 0.1)
        alpha = 1 - jnp.exp(-density * gaps)
        seen = jnp.cumprod(jnp.concatenate([jnp.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10], 1), 1)
        weights = alpha * seen
        return (weights[..., None] * colour).sum(1), weights

    def loss(p: Any, origin: jax.Array, way: jax.Array, pixels: jax.Array, key: jax.Array) -> jax.Array:
        t = jnp.tile(jnp.linspace(0.1, 2.0, 16), (origin.shape[0], 1))
        coarse, weights = render(p, origin, way, t)
        cdf = jnp.cumsum(lax.stop_gradient(weights) + 1e-3, 1)
        u = random.uniform(key, (origin.shape[0], 8)) * cdf[:, -1:]
        at = jax.vmap(jnp.searchsorted)(cdf, u)
        finer = jnp.sort(jnp.concatenate([t, jnp.take_along_axis(t, jnp.minimum(at, 15), 1) + 0.01], 1), 1)
        fine, _ = render(p, origin, way, finer)
        return jnp.square(coarse - pixels).mean() + jnp.square(fine - pixels).mean()

    p = (normal(0, 18, 32, scale=0.3), normal(1, 32, 4, scale=0.3))
    rays = (normal(2, 32, 3), normal(3, 32, 3), random.uniform(random.key(4), (32, 3)), random.key(5))
    return jax.value_and_grad(loss), (p, *rays)


def particle_filter() -> Made:
    """A bootstrap filter: systematic resampling by cumsum and searchsorted when the weights collapse (cond)."""

    def run(ys: jax.Array, key: jax.Array) -> Any:
        n = 64

        def step(state: Any, xs: Any) -> Any:
            x, logw = state
            y, key = xs
            a, b = random.split(key)
            x = 0.9 * x + jnp.sin(x) + 0.5 * random.normal(a, x.shape)
            logw = logw - jnp.square(y - x).sum(-1)
            logw = logw - jax.nn.logsumexp(logw)
            w = jnp.exp(logw)

            def again(x: jax.Array) -> Any:
                u = (jnp.arange(n) + random.uniform(b)) / n
                return x[jnp.minimum(jnp.searchsorted(jnp.cumsum(w), u), n - 1)], jnp.full(n, -jnp.log(n))

            out = lax.cond(1 / jnp.square(w).sum() < n / 2, again, lambda x: (x, logw), x)
            return out, (w @ x, 1 / jnp.square(w).sum())

        start = (jnp.zeros((n, 2)), jnp.full(n, -jnp.log(n)))
        return lax.scan(step, start, (ys, random.split(key, ys.shape[0])))[1]

    return run, (normal(0, 8, 2), random.key(1))


def checked() -> Made:
    """checkify: errors as values beside the result, inside scan."""

    def walk(x: jax.Array, at: jax.Array) -> jax.Array:
        def step(c: jax.Array, i: jax.Array) -> Any:
            checkify.check(i >= 0, "negative index {i}", i=i)
            return c + jnp.log(jnp.abs(x[i]) + 1), c.sum()

        return lax.scan(step, jnp.zeros(x.shape[1]), at)[0]

    guarded = checkify.checkify(walk, errors=checkify.user_checks | checkify.index_checks | checkify.float_checks)

    def run(x: jax.Array, at: jax.Array) -> Any:
        error, out = guarded(x, at)
        return out, sum(jnp.any(v) for v in jax.tree.leaves(error))

    return run, (normal(0, 16, 8), jnp.arange(8) * 2)


def lattice_boltzmann() -> Made:
    """Streaming by rolls in nine directions, collisions, bounce-back at an obstacle."""
    ways = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
    speeds = jnp.array(ways, jnp.float32)
    weights = jnp.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
    back = jnp.array([0, 3, 4, 1, 2, 7, 8, 5, 6])

    def run(f: jax.Array, wall: jax.Array) -> Any:
        def step(f: jax.Array, _: None) -> Any:
            rho = f.sum(0)
            u = jnp.einsum("qd,qxy->dxy", speeds, f) / rho
            cu = 3 * jnp.einsum("qd,dxy->qxy", speeds, u)
            settled = rho * weights[:, None, None] * (1 + cu + cu**2 / 2 - 1.5 * jnp.square(u).sum(0))
            g = jnp.where(wall, f[back], f - (f - settled) / 0.8)
            g = jnp.stack([jnp.roll(g[i], way, (0, 1)) for i, way in enumerate(ways)])
            return g.at[1, 0].set(g[1, 1] + 0.01), u[0, 0].mean()

        return lax.scan(step, f, None, length=3)

    wall = jnp.zeros((16, 16), bool).at[6:9, 6:9].set(True)
    return run, (1 + 0.1 * random.uniform(random.key(0), (9, 16, 16)), wall)


def quasi_newton() -> Made:
    """BFGS by jax.scipy.optimize on a batch of problems under vmap, line searches inside."""

    def rosenbrock(x: jax.Array, a: jax.Array) -> jax.Array:
        return jnp.sum(10 * jnp.square(x[1:] - x[:-1] ** 2) + jnp.square(a - x[:-1]))

    def solve(starts: jax.Array, a: jax.Array) -> Any:
        one = partial(minimize, rosenbrock, method="BFGS", options={"maxiter": 5})
        found = jax.vmap(lambda x, a: one(x, (a,)))(starts, a)
        return found.fun, found.nit

    return solve, (normal(0, 8, 4, scale=0.1) + 0.5, jnp.linspace(0.9, 1.1, 8))


def reaction_diffusion() -> Made:
    """Gray-Scott by a depthwise Laplacian convolution with periodic padding, then statistics of the pattern."""

    def run(u: jax.Array, v: jax.Array, feed: jax.Array) -> Any:
        kernel = jnp.array([[0.05, 0.2, 0.05], [0.2, -1.0, 0.2], [0.05, 0.2, 0.05]])[None, None]

        def step(_: int, state: Any) -> Any:
            both = jnp.pad(jnp.stack(state, 1), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="wrap")
            flow = lax.conv_general_dilated(
                both, jnp.tile(kernel, (2, 1, 1, 1)), (1, 1), "VALID", feature_group_count=2
            )
            u, v = state
            made = u * v * v
            f = feed[:, None, None]
            return u + flow[:, 0] - made + f * (1 - u), v + 0.5 * flow[:, 1] + made - (f + 0.06) * v

        u, v = lax.fori_loop(0, 5, step, (u, v))
        pooled = lax.reduce_window(v, -jnp.inf, lax.max, (1, 4, 4), (1, 4, 4), "VALID")
        return u, v, pooled, jax.vmap(lambda x: jnp.histogram(x, bins=8, range=(0.0, 1.0))[0])(v)

    start = random.uniform(random.key(0), (8, 16, 16))
    return run, (1 - start / 2, start / 4, jnp.linspace(0.02, 0.06, 8))


def gaussian_process() -> Made:
    """A sparse variational bound: kernels of all pairs, Cholesky factors and triangular solves, gradients of them."""

    def bound(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def kernel(a: jax.Array, b: jax.Array) -> jax.Array:
            d = jnp.square(a[:, None] - b).sum(-1)
            return jnp.exp(p["scale"] - d / (2 * jnp.exp(p["length"])))

        m = p["at"].shape[0]
        low = jnp.linalg.cholesky(kernel(p["at"], p["at"]) + 1e-3 * jnp.eye(m))
        a = jax.scipy.linalg.solve_triangular(low, kernel(p["at"], x), lower=True) / jnp.exp(p["noise"])
        lb = jnp.linalg.cholesky(jnp.eye(m) + a @ a.T)
        c = jax.scipy.linalg.solve_triangular(lb, a @ y, lower=True) / jnp.exp(p["noise"])
        fit = jnp.square(c).sum() - jnp.square(y).sum() * jnp.exp(-2 * p["noise"])
        trace = x.shape[0] * jnp.exp(p["scale"] - 2 * p["noise"]) - jnp.square(a).sum()
        return jnp.log(jnp.diagonal(lb)).sum() + x.shape[0] * p["noise"] - fit / 2 + trace / 2

    p = {"at": normal(0, 16, 2), "scale": jnp.float32(0), "length": jnp.float32(0), "noise": jnp.float32(-1)}
    x = normal(1, 64, 2)
    return jax.value_and_grad(bound), (p, x, jnp.sin(x[:, 0]))


PROGRAMS: Mapping[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        adjoint_ode,
        alignment,
        american_option,
        checked,
        decompositions,
        gaussian_process,
        implicit,
        k_means,
        kalman,
        krylov,
        lattice_boltzmann,
        mixture,
        molecules,
        particle_filter,
        particle_in_cell,
        quasi_newton,
        radiance,
        reaction_diffusion,
        sparse_products,
        tempered_chains,
        transport,
        waves,
    )
}
