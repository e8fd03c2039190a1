"""Writes rope_reference.inc: rotary tables of Hugging Face transformers' Llama. Run: python rope_reference.py"""

import pathlib

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

POSITIONS = [0, 1, 2, 17, 100, 1000]
HEAD_DIM = 64
CASES = {
    "kDefault": (10000.0, {"rope_type": "default"}),
    "kLinear": (10000.0, {"rope_type": "linear", "factor": 4.0}),
    "kLlama3": (500000.0, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                           "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "kYarn": (1000000.0, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
    "kYarnAttention": (10000.0, {"rope_type": "yarn", "factor": 16.0, "attention_factor": 1.5, "beta_fast": 24.0,
                                 "beta_slow": 2.0, "original_max_position_embeddings": 8192}),
}

lines = [f"// Written by rope_reference.py with transformers {transformers.__version__}. Do not edit.",
         "", "#pragma once", "", "#include <cstdint>", "#include <vector>", "",
         "namespace zero3::test::rope_reference {", "",
         "// Each table: cos then sin, [positions, 32] each, for heads of 64 channels.",
         "inline const std::vector<std::int64_t> kPositions = {" + ", ".join(map(str, POSITIONS)) + "};", ""]
for name, (theta, parameters) in CASES.items():
    config = LlamaConfig(hidden_size=HEAD_DIM, num_attention_heads=1, head_dim=HEAD_DIM, max_position_embeddings=131072,
                         rope_parameters={"rope_theta": theta, **parameters})
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=torch.float32), torch.tensor([POSITIONS]))
    values = torch.cat([cos[0, :, :HEAD_DIM // 2], sin[0, :, :HEAD_DIM // 2]]).flatten().tolist()
    lines.append(f"inline const std::vector<float> {name} = {{")
    for at in range(0, len(values), 6):
        lines.append("    " + ", ".join(f"{value:.9g}" + ("F" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else ".0F")
                                        for value in values[at:at + 6]) + ",")
    lines.append("};")
    lines.append("")
lines.append("}  // namespace zero3::test::rope_reference")
pathlib.Path(__file__).with_name("rope_reference.inc").write_text("\n".join(lines) + "\n")
