import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(97, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 97))
optimizer = torch.optim.AdamW(model[:3].parameters(), lr=1e-3)
text = torch.randint(97, (8, 65))
for step in range(3):
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    print(f"step {step + 1}: loss {loss.item():.4f}")
