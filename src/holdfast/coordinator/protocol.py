"""The whole language of a coordinator's port: handshake, rounds and store in one codec. Pure."""

from __future__ import annotations

from holdfast.coordinator.messages import COORDINATOR_TYPES, NODE_TYPES
from holdfast.store.messages import SERVICE, STORE_REPLIES, STORE_REQUESTS
from holdfast.wire.frames import Codec, Message
from holdfast.wire.handshake import HANDSHAKE_TYPES

CODEC: Codec[Message] = Codec(
    *HANDSHAKE_TYPES, *NODE_TYPES, *COORDINATOR_TYPES, *STORE_REQUESTS, *STORE_REPLIES, service=SERVICE
)
