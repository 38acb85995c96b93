"""What went wrong with a file, in words a person understands."""

import errno

from PIL import Image

_SYSTEM_REASONS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "permission denied",
    errno.EISDIR: "is a folder, not a file",
    errno.ENOTDIR: "is not a folder",
    errno.ENXIO: "is not a regular file",  # a socket
}
_TRUNCATED = ("truncated", "end of file", "eof")


def decoding_reason(kind: str, error: Exception) -> str:
    """Say why a picture of that kind could not be decoded."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "too large: not enough memory to decode it"
    if isinstance(error, Image.DecompressionBombError):
        return "too large: far too many pixels"
    if isinstance(error, OSError) and error.errno:
        return system_reason(error)
    if any(word in text.lower() for word in _TRUNCATED):
        return f"truncated {kind}: the end of the file is missing"
    return f"broken or truncated {kind}: {text or type(error).__name__}"


def system_reason(error: OSError | ValueError) -> str:
    """Say why the system would not give us the file."""
    known = isinstance(error, OSError) and _SYSTEM_REASONS.get(error.errno or 0)
    return known or getattr(error, "strerror", None) or str(error)
