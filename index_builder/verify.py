"""Every byte of an index against its manifest."""

from pathlib import Path

from refdraft.retriever.manifest import Manifest


def verify_index(directory: Path) -> Manifest:
    """Read a whole index.

    Raises:
        NotFoundError: The directory does not exist.
        IndexFormatError: A file is missing, truncated or altered; the message names it.
    """
    manifest = Manifest.read(directory)
    manifest.check_sizes(directory)
    manifest.check_hashes(directory, sorted(manifest.files))
    return manifest
