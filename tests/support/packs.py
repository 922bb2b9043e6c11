"""Small facts and a helper that installs a one-file pack, for tests about packs."""

import importlib
import sys
from pathlib import Path

from shardlint import Facts
from shardlint.facts import ContractFacts, FrozenDict, ModelCounts, ModelFacts, TensorFacts

BROKEN = Path(__file__).parents[1] / "packs" / "broken"
ACME = Path(__file__).parents[1] / "packs" / "acme"


def tensor(fqn: str, shape: tuple[int, ...] = (4, 4), dtype: str = "float32", **more: object) -> TensorFacts:
    fields = {"kind": "parameter", "device": "cpu", "requires_grad": True, "is_meta": False, **more}
    return TensorFacts(fqn=fqn, aliases=(fqn,), shape=shape, dtype=dtype, **fields)


def sample_facts(*tensors: TensorFacts) -> Facts:
    found = tensors or (tensor("layers.0.weight"), tensor("layers.1.weight"), tensor("norm.weight", (4,), "bfloat16"))
    counts = ModelCounts(modules=3, parameters=len(found), buffers=0, parameter_elements=sum(t.numel for t in found))
    model = ModelFacts(qualified_type="acme.Model", config=FrozenDict({"layers": 2}), tensors=found, counts=counts)
    return Facts(target="sample", model=model, contract=ContractFacts(source="test"))


def install(folder: Path, module: str, *, pack: str = "", version: str = "1.0") -> Path:
    """
    Put `broken/<module>.py` and its distribution metadata into `folder`, as pip would. The distribution is called
    `shardlint-<module>`, the pack like the module. Returns the installed file.
    """
    target = folder / f"{module}.py"
    target.write_bytes((BROKEN / f"{module}.py").read_bytes())
    dist_info = folder / f"shardlint_{module}-{version}.dist-info"
    dist_info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: shardlint-{module}\nVersion: {version}\n"
    metadata += f"Project-URL: Issues, https://broken.example/{module}/issues\n"
    (dist_info / "METADATA").write_text(metadata)
    (dist_info / "entry_points.txt").write_text(f"[shardlint.packs]\n{pack or module} = {module}\n")
    importlib.invalidate_caches()
    return target


def forget(*modules: str) -> None:
    for module in modules:
        sys.modules.pop(module, None)
