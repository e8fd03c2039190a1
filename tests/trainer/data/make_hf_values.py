#!/usr/bin/env python3
"""Writes hf_values.h: losses and gradients of tiny models as Hugging Face's transformers computes them.

  pip install torch transformers
  python3 make_hf_values.py > hf_values.h

Weights follow formula_value() of tests/support/toy_llama.h, in fp32 exactly; the models run in fp64 (their norms,
softmax and rotary tables in fp32, as transformers does it).
"""
import json

import torch
import transformers
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

BATCH, SEQ, VOCAB = 2, 9, 13
COMMON = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=18, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              attn_implementation="eager", use_cache=False)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, beta_fast=2.0, beta_slow=0.25,
            original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=2.0)
CASES = {
    "llama": LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters=LLAMA3, rms_norm_eps=1e-5)),
    "llama_bias": LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters=LINEAR, attention_bias=True,
                                               tie_word_embeddings=True)),
    "mistral": MistralForCausalLM(MistralConfig(**COMMON, head_dim=10, sliding_window=None)),
    "qwen2": Qwen2ForCausalLM(Qwen2Config(**COMMON, rope_parameters=YARN)),
    "qwen3": Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=10, tie_word_embeddings=True)),
}


def formula_word(name, index):
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    x = (seed + index * 2654435761) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & 0xFFFFFFFF
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def formula_value(name, index):
    uniform = (formula_word(name, index) >> 16) / 65536 - 0.5
    if name.endswith("norm.weight"):
        return 1 + 0.5 * uniform
    return (2.0 if "embed_tokens" in name else 0.5) * uniform


def main():
    ids = [formula_word("inputs", i) % VOCAB for i in range(BATCH * SEQ)]
    targets = [-100 if i % 7 == 3 else formula_word("targets", i) % VOCAB for i in range(BATCH * SEQ)]
    print("// Written by make_hf_values.py with transformers", transformers.__version__, "and torch",
          torch.__version__.split("+")[0])
    print("#pragma once\n\n#include <vector>\n\nnamespace zero3::test {\n")
    print("struct HfGradient {\n  const char* parameter;\n  int index;\n  double value;\n};")
    print("struct HfCase {\n  const char* name;\n  const char* config;\n  double loss_sum;")
    print("  std::vector<HfGradient> gradients;\n};\n")
    print("inline std::vector<HfCase> hf_cases() {\n  return {")
    for case, model in CASES.items():
        model = model.double().eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                values = [formula_value(name, i) for i in range(p.numel())]
                p.copy_(torch.tensor(values, dtype=torch.float64).reshape(p.shape))
        logits = model(input_ids=torch.tensor(ids).reshape(BATCH, SEQ)).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), torch.tensor(targets),
                                                 ignore_index=-100, reduction="sum")
        loss.backward()
        config = {k: v for k, v in model.config.to_dict().items() if not k.startswith("_")}
        print(f'      {{"{case}",\n       R"({json.dumps(config, sort_keys=True)})",')
        print(f"       {loss.item()!r},\n       {{")
        for name, p in model.named_parameters():
            gradient = p.grad.flatten()
            for index in (0, gradient.numel() // 2 + 1, gradient.numel() - 1):
                print(f'           {{"{name}", {index}, {gradient[index].item()!r}}},')
        print("       }},")
    print("  };\n}\n\n}  // namespace zero3::test")


main()
