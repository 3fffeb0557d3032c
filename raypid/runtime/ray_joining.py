"""Whether a Ray cluster can be joined, and if not, why: within seconds, where Ray would try for 20 and more."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import ray
import ray.exceptions
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled

from raypid.errors import UserError, one_line
from raypid.plugins.extras import MissingPackage, installed, pip
from raypid.settings.address import ANSWER_S, AUTO, CLIENT, NotJoined, check_answers, no_ray

_RAYLET: Any = ray._raylet
_UNKNOWN_CALL = 12
"""gRPC's code for a call that a server does not know."""


def joinable(address: str) -> str:
    """Check that a cluster can be joined, since Ray itself tries for 20 seconds and more; returns where it is.

    Raises:
        UserError: there is no cluster, or it does not let this process in.
        MissingPackage: Ray Client is not installed.
    """
    if address.startswith(CLIENT) and not installed("grpc"):
        raise MissingPackage(
            f'{address} is an address of Ray Client, which needs grpcio, and that is not installed: {pip()} install "ray[client]". '
            "On a node of the cluster, host:6379 joins it without."
        )
    found = address == AUTO
    if found:
        address = _found_here()
    try:
        check_answers(address)
        if not address.startswith(CLIENT):
            _check_lets_in(address)
    except UserError as error:
        if not found:
            raise
        raise type(error)(f"{error} {_how_found(address)}") from error
    return address


def _how_found(address: str) -> str:
    """Say where an address comes from that nobody has given, and which others there are."""
    others = sorted({str(other) for other in ray._private.services.find_gcs_addresses()} - {address})
    which = f"those of others here are {', '.join(others)}" if others else "there is no other here"
    return f"(`auto` has found that address, as the newest Ray of this machine; {which}.)"


def _found_here() -> str:
    logging.getLogger("ray").setLevel(logging.ERROR)  # of several it takes the newest
    try:
        return str(ray._private.services.get_ray_address_from_environment(AUTO, None))
    except ConnectionError as error:
        raise NotJoined(
            "No Ray cluster runs on this machine (address auto): `ray start --head` starts one here, address host:6379 joins that of "
            "another host, and without address a run starts Ray for itself."
        ) from error


def _check_lets_in(address: str) -> None:
    """Ask the cluster for its nodes. (Ray itself compares versions.)

    Raises:
        UserError: it asks for a token that this process lacks, or has no node on this machine.
    """
    try:
        ensure_token_if_auth_enabled(create_token_if_missing=False)
        with _quiet():
            client = _RAYLET.GcsClient(address=address)
            nodes = client.get_all_node_info(timeout=ANSWER_S).values()
    except ray.exceptions.AuthenticationError as error:
        raise UserError(
            f"The Ray cluster at {address!r} asks for its token, and there is none here, or another one: set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN to what the head node has in ~/.ray/auth_token (or copy that file here)."
        ) from error
    except (RuntimeError, ConnectionError, ray.exceptions.RayError) as error:
        if "http2 header" in str(error):  # it speaks HTTP/2, but not Ray's kind of it
            raise no_ray(address) from error
        if getattr(error, "rpc_code", None) == _UNKNOWN_CALL:
            raise NotJoined(
                f"What answers at {address!r} is not the head of a Ray cluster, but probably another server of one of its nodes: take the "
                "port of `ray start --head --port` (6379) on the head node."
            ) from error
        raise NotJoined(
            f"The Ray cluster at {address!r} could not be joined: {one_line(error).rstrip('.')}."
        ) from error
    if nodes and not any(os.path.exists(node.raylet_socket_name) for node in nodes):  # Ray would look for a minute
        raise UserError(
            f"This machine is no node of the Ray cluster at {address!r}: `ray start --address {address}` makes it one (--num-cpus 0: without "
            "workers). Or run this on a node, or join with ray://host:10001."
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Ray's C++ code says out of the terminal; the exception says it too."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
