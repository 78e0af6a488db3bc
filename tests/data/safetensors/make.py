"""Makes numpy.safetensors with the Python package: pip install safetensors==0.8.0 numpy; python make.py"""

import pathlib

import numpy as np
from safetensors.numpy import save_file

tensors = {
    "scalar": np.array(2.5, dtype=np.float64),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "f64": np.array([[1.0, -2.5], [3.25, 1e300]], dtype=np.float64),
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "f16": np.array([0.5, -1.5, 65504], dtype=np.float16),
    "i64": np.array([-(2**63), 2**63 - 1], dtype=np.int64),
    "i32": np.array([[-1], [2**31 - 1]], dtype=np.int32),
    "i16": np.array([-32768, 5], dtype=np.int16),
    "i8": np.array([-128, 127, 0], dtype=np.int8),
    "u8": np.arange(5, dtype=np.uint8),
    "u16": np.array([65535], dtype=np.uint16),
    "u32": np.array([4294967295], dtype=np.uint32),
    "u64": np.array([2**64 - 1], dtype=np.uint64),
    "bool": np.array([True, False, True]),
    "a.b/c é": np.array([7], dtype=np.int32),
}
save_file(tensors, pathlib.Path(__file__).with_name("numpy.safetensors"), metadata={"format": "np", "note": 'a "b"'})
