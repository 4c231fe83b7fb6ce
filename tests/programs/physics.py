"""Programs that simulate: grids, particles, equations of motion."""

from __future__ import annotations

from tests.programs.rows import normal, positive, program


@program(positive((9, "n", "n+2")))
def lattice_boltzmann(xp, f):
    c = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    w = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
    f = xp.stack([xp.roll(f[k], c[k], axis=(0, 1)) for k in range(9)], axis=0)
    rho = xp.sum(f, axis=0)
    cx = xp.asarray([float(a) for a, _ in c], dtype=f.dtype)[:, None, None]
    cy = xp.asarray([float(b) for _, b in c], dtype=f.dtype)[:, None, None]
    ux, uy = xp.sum(f * cx, axis=0) / rho, xp.sum(f * cy, axis=0) / rho
    cu = cx * ux + cy * uy
    ww = xp.asarray(w, dtype=f.dtype)[:, None, None]
    eq = ww * rho * (1 + 3 * cu + 4.5 * cu * cu - 1.5 * (ux * ux + uy * uy))
    return f + (eq - f) / 0.6, ux, uy


@program(positive(("n", "n+1"), ("n", "n+1")))
def gray_scott(xp, u, v):
    def lap(z):
        return sum(xp.roll(z, s, axis=a) for a in (0, 1) for s in (-1, 1)) - 4 * z

    for _ in range(4):
        r = u * v * v
        u, v = u + 0.1 * lap(u) - r + 0.04 * (1 - u), v + 0.05 * lap(v) + r - 0.1 * v
    return u, v


@program(normal(("n+2",)))
def burgers(xp, u):
    for _ in range(3):
        f = 0.5 * u * u
        flux = 0.5 * (f[1:] + f[:-1]) - 0.5 * xp.maximum(xp.abs(u[1:]), xp.abs(u[:-1])) * (
            u[1:] - u[:-1]
        )
        u = xp.concat([u[:1], u[1:-1] - 0.05 * (flux[1:] - flux[:-1]), u[-1:]])
    return u


@program(normal(("n", 3)))
def lorenz_rk4(xp, s):
    def d(z):
        x, y, w = z[:, 0], z[:, 1], z[:, 2]
        return xp.stack([10 * (y - x), x * (28 - w) - y, x * y - w * (8 / 3)], axis=1)

    for _ in range(2):
        a = d(s)
        b = d(s + 0.005 * a)
        c = d(s + 0.005 * b)
        e = d(s + 0.01 * c)
        s = s + (0.01 / 6) * (a + 2 * b + 2 * c + e)
    return s


@program(positive(("n", 3)))
def lennard_jones(xp, p):
    p = p * 4
    d = p[:, None, :] - p[None, :, :]
    d = d - 4.0 * xp.round(d / 4.0)
    r2 = xp.sum(d * d, axis=-1)
    n = p.shape[0]
    off = xp.arange(n)[:, None] != xp.arange(n)[None, :]
    r2 = xp.where(off, r2, xp.ones_like(r2)) + 0.5
    near = off & (r2 < 4)
    i6 = 1 / (r2 * r2 * r2)
    zero = xp.zeros_like(r2)
    e = xp.where(near, 4 * (i6 * i6 - i6), zero)
    f = xp.where(near, 24 * (2 * i6 * i6 - i6) / r2, zero)
    return xp.sum(e) / 2, xp.sum(f[:, :, None] * d, axis=1)


@program(positive(("n", 2), ("n",)))
def sph_density(xp, p, m):
    d2 = xp.sum((p[:, None] - p[None]) ** 2, axis=-1)
    q = xp.maximum(0.5 - d2, xp.zeros_like(d2))
    rho = xp.sum(m[None, :] * q**3, axis=1)
    pr = rho**2 * 0.1
    acc = (pr[:, None] + pr[None, :]) * q**2 / (rho[None, :] + 1e-3)
    return rho, xp.sum(acc[..., None] * (p[:, None] - p[None]), axis=1)


@program(normal(("n", "n"), ("n", "n"), ("n", "n")))
def yee_fdtd(xp, ez, hx, hy):
    for _ in range(3):
        hx = hx - 0.5 * (xp.roll(ez, -1, axis=1) - ez)
        hy = hy + 0.5 * (xp.roll(ez, -1, axis=0) - ez)
        ez = ez + 0.5 * ((hy - xp.roll(hy, 1, axis=0)) - (hx - xp.roll(hx, 1, axis=1)))
    return ez, hx, hy


@program(normal(("n+2", "n+3")))
def poisson_jacobi(xp, b):
    u = xp.zeros_like(b)
    for _ in range(3):
        inner = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - b[1:-1, 1:-1])
        rows = xp.concat([xp.zeros_like(inner[:, :1]), inner, xp.zeros_like(inner[:, :1])], axis=1)
        u = xp.concat([xp.zeros_like(rows[:1]), rows, xp.zeros_like(rows[:1])], axis=0)
    return u, xp.sqrt(xp.sum(u * u))


@program(normal(("n", 3)))
def euler_rotations(xp, a):
    c, s = xp.cos(a), xp.sin(a)
    one, zero = xp.ones_like(c[:, 0]), xp.zeros_like(c[:, 0])

    def rows(*r):
        return xp.reshape(xp.stack(r, axis=-1), (a.shape[0], 3, 3))

    z = rows(c[:, 2], -s[:, 2], zero, s[:, 2], c[:, 2], zero, zero, zero, one)
    y = rows(c[:, 1], zero, s[:, 1], zero, one, zero, -s[:, 1], zero, c[:, 1])
    x = rows(one, zero, zero, zero, c[:, 0], -s[:, 0], zero, s[:, 0], c[:, 0])
    r = xp.matmul(z, xp.matmul(y, x))
    return r, r[:, 0, 0] + r[:, 1, 1] + r[:, 2, 2]


@program(normal(("n", 3), ("n", 3), ("n", 3), ("n", 3)))
def dihedral(xp, a, b, c, d):
    def cross(u, v):
        return xp.stack(
            [
                u[:, 1] * v[:, 2] - u[:, 2] * v[:, 1],
                u[:, 2] * v[:, 0] - u[:, 0] * v[:, 2],
                u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0],
            ],
            axis=1,
        )

    p, q, r = b - a, c - b, d - c
    u, v = cross(p, q), cross(q, r)
    q = q / xp.sqrt(xp.vecdot(q, q))[:, None]
    return xp.atan2(xp.vecdot(cross(u, v), q), xp.vecdot(u, v))


@program(positive((2, "n"), (4,)))
def lotka_volterra(xp, s, k):
    out = []
    x, y = s[0], s[1]
    for _ in range(6):
        x, y = x + 0.1 * (k[0] * x - k[1] * x * y), y + 0.1 * (k[2] * x * y - k[3] * y)
        out.append(xp.stack([x, y]))
    return xp.stack(out, axis=1), xp.max(xp.stack(out), axis=0)


@program(normal((6, 6), ("n", 6)))
def matrix_exponential(xp, a, x):
    a = a / 8
    out, term = xp.eye(6, dtype=a.dtype), xp.eye(6, dtype=a.dtype)
    for k in range(1, 8):
        term = xp.matmul(term, a) / k
        out = out + term
    for _ in range(2):
        out = xp.matmul(out, out)
    return out, xp.matmul(x, out)


@program(positive(("n", 5)))
def gram_schmidt(xp, a):
    q = []
    for j in range(5):
        v = a[:, j]
        for u in q:
            v = v - xp.sum(u * v) * u
        q.append(v / (xp.sqrt(xp.sum(v * v)) + 1e-3))
    return xp.stack(q[:3], axis=1)


@program(normal(("n", "n"), ("n",)))
def conjugate_gradient(xp, a, b):
    a = xp.matmul(a, a.T) / a.shape[0] + xp.eye(a.shape[0], dtype=a.dtype)
    x, r = xp.zeros_like(b), b
    p, rs = r, xp.sum(r * r)
    for _ in range(3):
        ap = xp.matmul(a, p)
        alpha = rs / xp.sum(p * ap)
        x, r = x + alpha * p, r - alpha * ap
        new = xp.sum(r * r)
        p, rs = r + (new / rs) * p, new
    return x, rs


@program(normal(("n", 4), (4, 4), (2, 4)))
def kalman(xp, x, f, h):
    p = xp.eye(4, dtype=x.dtype)
    f = f / 4
    p = xp.matmul(xp.matmul(f, p), f.T) + 0.1 * xp.eye(4, dtype=x.dtype)
    s = xp.matmul(xp.matmul(h, p), h.T) + xp.eye(2, dtype=x.dtype)
    det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
    inv = xp.stack([xp.stack([s[1, 1], -s[0, 1]]), xp.stack([-s[1, 0], s[0, 0]])]) / det
    k = xp.matmul(xp.matmul(p, h.T), inv)
    y = xp.matmul(x, f.T)
    return y - xp.matmul(xp.matmul(y, h.T), k.T), p - xp.matmul(xp.matmul(k, h), p)


@program(normal((7, "n"), (7,)))
def horner_and_newton(xp, x, c):
    y, d = xp.zeros_like(x), xp.zeros_like(x)
    for k in range(7):
        d = d * x + y
        y = y * x + c[k]
    root = x - y / (xp.where(d == 0, xp.ones_like(d), d) + 20)
    return y, root


@program(positive(("n", 3)))
def distance_field(xp, p):
    def sphere(c, r):
        d = p - xp.asarray(c, dtype=p.dtype)
        return xp.sqrt(xp.sum(d * d, axis=1)) - r

    q = xp.abs(p) - 0.5
    zero = xp.zeros_like(q)
    box = xp.sqrt(xp.sum(xp.maximum(q, zero) ** 2, axis=1)) + xp.minimum(
        xp.max(q, axis=1), zero[:, 0]
    )
    union = xp.minimum(box, sphere([1.0, 0.0, 0.5], 0.3))
    return xp.maximum(union, -sphere([0.2, 0.2, 0.2], 0.4)), xp.argmin(
        xp.stack([box, union]), axis=0
    )
