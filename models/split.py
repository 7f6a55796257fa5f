"""
Split a GGUF model by tensors, as large models are published: NAME-00001-of-0000N.gguf.

    python -m models.split model.gguf -n 5 -o parts/model
"""
import argparse
from pathlib import Path

from gguf import GGUFReader, GGUFWriter

from .vocabs import read_fields


def split(path, prefix, n_parts):
    """Write ``prefix``-0000i-of-0000n.gguf; returns their paths. The first has the metadata, each a run of tensors."""
    tensors, fields = GGUFReader(path).tensors, read_fields(path)
    arch = dict(f[:2] for f in fields)["general.architecture"]
    if n_parts > len(tensors):
        raise ValueError(f"{len(tensors)} tensors do not make {n_parts} parts")
    paths = []
    for i in range(n_parts):
        w = GGUFWriter(Path(f"{prefix}-{i + 1:05}-of-{n_parts:05}.gguf"), arch)
        for key, value, kind, element in fields if i == 0 else []:
            if key != "general.architecture":
                w.add_key_value(key, value, kind, sub_type=element)
        w.add_uint16("split.no", i)
        w.add_uint16("split.count", n_parts)
        w.add_int32("split.tensors.count", len(tensors))
        for t in tensors[len(tensors) * i // n_parts:len(tensors) * (i + 1) // n_parts]:
            w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        paths.append(w.path)
    return paths


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m models.split", description=__doc__.splitlines()[1])
    parser.add_argument("model")
    parser.add_argument("-n", "--parts", type=int, default=5)
    parser.add_argument("-o", "--output", required=True, help="path of the parts without -00001-of-...")
    args = parser.parse_args(argv)
    for path in split(args.model, args.output, args.parts):
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
