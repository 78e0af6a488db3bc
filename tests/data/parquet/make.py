"""Makes the Parquet files of this folder, once: python3 make.py (with pyarrow 22.0.0)."""
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

here = pathlib.Path(__file__).parent
texts = [f"Document {i}: the \"loss\" falls\n\tby {i * i} \u00e9 \U0001f600 \\" for i in range(500)]
texts[7] = None
texts[9] = ""
table = pa.table({
    "id": list(range(500)),
    "text": pa.array(texts, pa.string()),
    "title": pa.array([f"title {i % 3}" for i in range(500)]).dictionary_encode(),
    "large": pa.array([f"large {i}" for i in range(500)], pa.large_string()),
    "meta": [{"source": "web", "text": "nested"}] * 500,
})
pq.write_table(table, here / "texts.parquet", row_group_size=128, compression="zstd", use_dictionary=["title"])
pq.write_table(table.slice(0, 40), here / "snappy.parquet", compression="snappy")
labelled = pa.table({
    "text": ["one", "two", "three"],
    "text_pair": ["a", None, "c"],
    "label": pa.array([2, 0, None], pa.int8()),
    "wide": pa.array([1 << 40, -1, 0], pa.int64()),
    "score": [0.1, -2.0, 1e-7],
    "single": pa.array([0.5, 1, 3], pa.float32()),
    "flag": [True, False, None],
    "list": [[1], [2], [3]],
})
pq.write_table(labelled, here / "labelled.parquet")
# As Hugging Face's datasets write conversations: a member that only some messages have is null in the others.
chats = pa.table({
    "messages": [
        [{"role": "user", "content": "Hi \"you\"", "seen": True}, {"role": "assistant", "content": "Yes\n", "seen": None}],
        [{"role": "user", "content": "\u00e9", "seen": None}, {"role": "assistant", "content": "No", "seen": False}],
    ],
    "tools": [[{"name": "f", "sizes": [[1], [2, 3]]}], None],
    "ids": pa.array([[72, 105], []], pa.large_list(pa.int32())),
    "scores": pa.array([[("a", 0.5)], None], pa.map_(pa.string(), pa.float64())),
})
pq.write_table(chats, here / "chats.parquet")
(here / "cut.parquet").write_bytes((here / "texts.parquet").read_bytes()[:2000])
