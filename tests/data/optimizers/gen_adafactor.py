"""Writes adafactor.json: 20 steps of Adafactor in fp64, by the formulas of torch.optim.Adafactor (torch 2.11.0, _single_tensor_adafactor) and
of transformers.optimization.Adafactor, with NumPy. The two are written apart: torch's divides the product of row and column means, takes
eps as a least value and decays by lr; transformers' multiplies roots and adds eps. Gradients are sines, so the test makes them too."""
import json
import math

import numpy as np

SHAPES = {"m": (6, 5), "n": (3, 7), "v": (5,)}
STEPS = 20


def start(name):
    n = math.prod(SHAPES[name])
    return np.cos(0.7 * (np.arange(n) + 1.0) + ord(name)).reshape(SHAPES[name]) * 0.5


def gradient(name, t):
    n = math.prod(SHAPES[name])
    return np.sin(0.37 * (np.arange(n) + 1.0) * t + ord(name)).reshape(SHAPES[name])


def by_torch(lr, weight_decay):
    result, eps = {}, 1e-30
    for k in SHAPES:
        p = start(k)
        row_var = np.zeros((*p.shape[:-1], 1))
        col_var = np.zeros((1, p.shape[-1]))
        variance = np.zeros_like(p)
        for t in range(1, STEPS + 1):
            grad = gradient(k, t)
            weight = t**-0.8
            alpha = max(1e-3, np.linalg.norm(p) / p.size**0.5) * min(lr, 1 / t**0.5)
            p = p * (1 - lr * weight_decay)
            if grad.ndim > 1:
                row_mean = np.linalg.norm(grad, axis=-1, keepdims=True) ** 2 / grad.shape[-1]
                col_mean = np.linalg.norm(grad, axis=-2, keepdims=True) ** 2 / grad.shape[-2]
                row_var = row_var + weight * (row_mean - row_var)
                col_var = col_var + weight * (col_mean - col_var)
                estimate = (row_var @ col_var) / np.maximum(row_var.mean(axis=-2, keepdims=True), eps)
            else:
                variance = variance + weight * (grad * grad - variance)
                estimate = variance
            update = grad / np.sqrt(np.maximum(estimate, eps * eps))
            denominator = max(1.0, np.linalg.norm(update) / update.size**0.5)
            p = p - alpha / denominator * update
        result[k] = p.flatten().tolist()
    return result


def rms(x):
    return math.sqrt(np.mean(np.square(x)))


def by_transformers(lr, beta1, clip, relative, scale):
    result = {}
    for k in SHAPES:
        p = start(k)
        mean = np.zeros_like(p)
        row = col = full = 0.0
        for t in range(1, STEPS + 1):
            g = gradient(k, t)
            step = (min(1e-2, 1 / math.sqrt(t)) if relative else lr) * (max(1e-3, rms(p)) if scale else 1)
            beta2 = 1 - t ** -0.8
            squares = g**2 + 1e-30
            if p.ndim == 2:
                row = beta2 * row + (1 - beta2) * squares.mean(-1)
                col = beta2 * col + (1 - beta2) * squares.mean(-2)
                u = g / np.sqrt(row / row.mean())[:, None] / np.sqrt(col)[None, :]
            else:
                full = beta2 * full + (1 - beta2) * squares
                u = g / np.sqrt(full)
            u = u / max(1.0, rms(u) / clip) * step
            if beta1:
                mean = beta1 * mean + (1 - beta1) * u
                u = mean
            p = p - u
        result[k] = p.flatten().tolist()
    return result


if __name__ == "__main__":
    cases = [
        {"lr": 0.05, "weight_decay": 0.1, "weights": by_torch(0.05, 0.1)},
        {"lr": 0.9, "relative": True, "weights": by_torch(0.9, 0.0)},
        {"lr": 0.05, "beta1": 0.9, "clip": 0.7, "weights": by_transformers(0.05, 0.9, 0.7, False, True)},
        {"lr": 0.01, "relative": True, "scale": False, "weights": by_transformers(0.01, 0, 1.0, True, False)},
    ]
    with open(__file__.replace("gen_adafactor.py", "adafactor.json"), "w", encoding="utf-8") as out:
        json.dump({"cases": cases}, out, indent=1)
        out.write("\n")
