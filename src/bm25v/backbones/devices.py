"""Where torch can compute on this machine."""

from typing import Any

from bm25v.errors import WrongUse


def find(torch: Any, wanted: str | None) -> Any:
    """Return the device of that name, or the fastest there is."""
    here = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    here += ["mps"] if torch.backends.mps.is_available() else []
    here += ["cpu"]
    if wanted is None:
        return torch.device(here[0])
    if wanted not in {*here, *(device.partition(":")[0] for device in here)}:
        raise WrongUse(f"there is no device {wanted!r} on this machine, only: {', '.join(here)}")
    return torch.device(wanted)
