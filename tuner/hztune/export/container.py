"""Exports for containers. The library must be in the image: the comment of each form says how."""

from __future__ import annotations

import json

from hztune import allocator
from hztune.export.provenance import PRELOAD, hashed, provenance
from hztune.profile import Profile

_HZ_IN_IMAGE = "/usr/local/lib/libhz.so"
_DEEPBIND_IN_IMAGE = "/usr/local/lib/libhz-deepbind.so"


def dockerfile(profile: Profile) -> str:
    """Lines for the end of a Dockerfile: an earlier ENV would act on the RUN lines after it."""
    lines = hashed(provenance(profile, "remove these lines and rebuild the image"))
    lines += hashed([*_needs(profile), "place:   after the last RUN line"])
    lines += _installation(profile)
    return lines + "".join(f"ENV {key}={_quoted(v)}\n" for key, v in _in_image(profile).items())


def compose(profile: Profile) -> str:
    """A file for `docker compose -f compose.yaml -f THIS up`; every assignment is quoted."""
    lines = hashed(provenance(profile, "leave this file out of the command"))
    lines += hashed([*_needs(profile), "rename the service `app` to your own"])
    variables = "".join(
        f"      - {_quoted(f'{key}={value}'.replace('$', '$$'))}\n"
        for key, value in _in_image(profile).items()
    )
    return f"{lines}services:\n  app:\n    environment:\n{variables}"


def k8s(profile: Profile) -> str:
    """The `env` of a container: values are quoted strings, as the schema wants them."""
    lines = hashed(provenance(profile, "remove these entries and roll the workload out again"))
    lines += hashed(
        [
            *_needs(profile),
            "place:   under spec.containers[] of the pod; set resources.limits.memory beside it",
        ]
    )
    entries = "".join(
        f"  - name: {key}\n    value: {_quoted(value.replace('$', '$$'))}\n"
        for key, value in _in_image(profile).items()
    )
    return f"{lines}env:\n{entries}"


def _in_image(profile: Profile) -> dict[str, str]:
    library = _preload(profile)
    return {**profile.environment, **({PRELOAD: library} if library else {})}


def _preload(profile: Profile) -> str:
    """What LD_PRELOAD must name in the image; empty as in `provenance.preload`."""
    if profile.allocator.name == "hz":
        return _HZ_IN_IMAGE
    soname = profile.allocator.soname
    return f"{soname}:{_DEEPBIND_IN_IMAGE}" if soname else ""


def _installation(profile: Profile) -> str:
    if profile.allocator.name == "hz":
        return f"COPY libhz.so {_HZ_IN_IMAGE}\n"
    if not profile.allocator.soname:
        return ""
    package = _package(profile)
    install = (
        f"RUN apt-get update && apt-get install -y --no-install-recommends {package} "
        "&& rm -rf /var/lib/apt/lists/*\n"
    )
    return (install if package else "") + f"COPY libhz-deepbind.so {_DEEPBIND_IN_IMAGE}\n"


def _needs(profile: Profile) -> list[str]:
    if profile.allocator.name == "hz":
        return [f"needs:   the image must hold {_HZ_IN_IMAGE} (hztune paths --lib is the file)"]
    if profile.allocator.name == "glibc":
        return [
            f"needs:   an image with glibc {profile.allocator.version} (Alpine has another libc)"
        ]
    if profile.adapter.is_inside:
        what = f"{profile.adapter.family} {profile.allocator.version}".rstrip()
        return [f"needs:   an image whose program has {what} inside, as the one that was measured"]
    if not profile.allocator.soname:
        return []
    package = _package(profile)
    beside = f"{_DEEPBIND_IN_IMAGE} (hztune paths --deepbind is the file)"
    held = f"the Debian package {package} and {beside}" if package else beside
    return [f"needs:   the image must hold {held}"]


def _package(profile: Profile) -> str:
    """The package that brings the library; the C library is in every image."""
    soname = profile.allocator.soname
    return allocator.get(profile.allocator.name).package_of(soname) if soname else ""


def _quoted(text: str) -> str:
    """A string as JSON writes it, which YAML and Dockerfile read alike."""
    return json.dumps(text)
