"""Writes torch_reference.inc: what PyTorch computes for small inputs. Run: python torch_reference.py"""

import pathlib

import torch

torch.manual_seed(1)
lines = [f"// Written by torch_reference.py with PyTorch {torch.__version__.split('+')[0]}. Do not edit.",
         "", "#pragma once", "", "#include <vector>", "",
         "namespace zero3::test::torch_reference {", ""]


def write(name, tensor):
    literals = [f"{value!r}F" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0F"
                for value in tensor.detach().flatten().tolist()]
    lines.append(f"inline const std::vector<float> {name} = {{")
    for at in range(0, len(literals), 4):
        lines.append("    " + ", ".join(literals[at:at + 4]) + ",")
    lines.append("};")
    lines.append("")


# AdamW: ten steps.
weight = torch.nn.Parameter(torch.randn(13))
write("kAdamWWeights", weight)
optimizer = torch.optim.AdamW([weight], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
grads = torch.randn(10, 13)
write("kAdamWGrads", grads)
for grad in grads:
    weight.grad = grad.clone()
    optimizer.step()
write("kAdamWResult", weight)

# RMSNorm over rows of 9: output and gradients for a given output gradient.
x = torch.randn(5, 9, requires_grad=True)
norm = torch.nn.RMSNorm(9, eps=1e-5)
with torch.no_grad():
    norm.weight.copy_(1 + 0.3 * torch.randn(9))
dy = torch.randn(5, 9)
y = norm(x)
y.backward(dy)
write("kNormX", x)
write("kNormWeight", norm.weight)
write("kNormDy", dy)
write("kNormY", y)
write("kNormDx", x.grad)
write("kNormDweight", norm.weight.grad)

# SwiGLU.
gate = (2 * torch.randn(17)).requires_grad_()
up = torch.randn(17, requires_grad=True)
d_out = torch.randn(17)
out = torch.nn.functional.silu(gate) * up
out.backward(d_out)
write("kSwigluGate", gate)
write("kSwigluUp", up)
write("kSwigluDout", d_out)
write("kSwigluOut", out)
write("kSwigluDgate", gate.grad)
write("kSwigluDup", up.grad)

# Cross-entropy of 4 rows, the third ignored; targets 2, 10, ignored, 0.
logits = (3 * torch.randn(4, 11)).requires_grad_()
targets = torch.tensor([2, 10, -100, 0])
losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
losses.sum().backward()
write("kEntropyLogits", logits)
write("kEntropyLosses", losses)
write("kEntropyDlogits", logits.grad)

lines.append("}  // namespace zero3::test::torch_reference")
pathlib.Path(__file__).with_name("torch_reference.inc").write_text("\n".join(lines) + "\n")
