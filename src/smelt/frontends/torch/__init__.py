"""PyTorch front end: `torch.compile(model, backend="smelt")`.

Public names are in `smelt.torch`.
"""
