"""The machines of Azure as named resources, `azure_<size>`, from its published specifications. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.specs.instance_types import ResourceFactory, identifiers, instance_types

_TABLE = """
Standard_ND40rs_v2 40 8 672
Standard_ND96asr_v4 96 8 900
Standard_ND96amsr_A100_v4 96 8 1800
Standard_ND96isr_H100_v5 96 8 1900
Standard_ND96isr_H200_v5 96 8 1850
Standard_ND96isr_MI300X_v5 96 8 1850
Standard_ND128isr_NDR_GB200_v6 128 4 900
Standard_NC6s_v3 6 1 112
Standard_NC12s_v3 12 2 224
Standard_NC24s_v3 24 4 448
Standard_NC24rs_v3 24 4 448
Standard_NC4as_T4_v3 4 1 28
Standard_NC8as_T4_v3 8 1 56
Standard_NC16as_T4_v3 16 1 110
Standard_NC64as_T4_v3 64 4 440
Standard_NC24ads_A100_v4 24 1 220
Standard_NC48ads_A100_v4 48 2 440
Standard_NC96ads_A100_v4 96 4 880
Standard_NC40ads_H100_v5 40 1 320
Standard_NC80adis_H100_v5 80 2 640
Standard_NV36ads_A10_v5 36 1 440
Standard_NV36adms_A10_v5 36 1 880
Standard_NV72ads_A10_v5 72 2 880
Standard_D2s_v5 2 0 8
Standard_D4s_v5 4 0 16
Standard_D8s_v5 8 0 32
Standard_D16s_v5 16 0 64
Standard_D32s_v5 32 0 128
Standard_D48s_v5 48 0 192
Standard_D64s_v5 64 0 256
Standard_D96s_v5 96 0 384
Standard_F2s_v2 2 0 4
Standard_F4s_v2 4 0 8
Standard_F8s_v2 8 0 16
Standard_F16s_v2 16 0 32
Standard_F32s_v2 32 0 64
Standard_F48s_v2 48 0 96
Standard_F64s_v2 64 0 128
Standard_F72s_v2 72 0 144
"""

NAMED_RESOURCES: Mapping[str, ResourceFactory] = instance_types("azure_", _TABLE)

globals().update(identifiers(NAMED_RESOURCES))
