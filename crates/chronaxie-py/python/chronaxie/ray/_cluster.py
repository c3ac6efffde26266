"""Ray, when it is needed."""

from __future__ import annotations

from typing import Any

from .._errors import BackendUnavailableError


def cluster(what: str) -> Any:
    """The module ``ray``, joined to a cluster.

    Raises:
        BackendUnavailableError: it is not installed.
    """
    try:
        import ray
    except ImportError as e:
        raise BackendUnavailableError(f"{what} needs Ray, which is not installed: pip install 'ray>=2.40' ({e})") from None
    if not ray.is_initialized():
        ray.init()
    return ray


def use_threads(count: float) -> None:
    """As many threads of this process as Ray counts CPUs for it, so that those of one machine share it."""
    from .. import set_num_threads

    set_num_threads(max(1, int(count)))
