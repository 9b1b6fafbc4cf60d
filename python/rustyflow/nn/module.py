"""`Module`: something with parameters, which are its attributes and those of the modules in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from .._rustyflow import Tensor

_M = TypeVar("_M", bound="Module")


def Parameter(data: Tensor, requires_grad: bool = True) -> Tensor:
    """A tensor that a module learns: a leaf that collects a gradient."""
    return data.detach().requires_grad_(requires_grad)


class Module:
    """A network, or a part of one. Subclasses assign parameters and modules to attributes and define `forward`.

    A parameter is a tensor that collects a gradient; a buffer, one that belongs to the state and is not learned, is
    registered by `register_buffer`.
    """

    training: bool

    def __init__(self) -> None:
        self.training = True
        self._buffers: list[str] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; `module(x)` calls it."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        """Keeps a tensor that is part of the state and not learned."""
        self._buffers.append(name)
        setattr(self, name, tensor)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules that are attributes of this one."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def children(self) -> Iterator[Module]:
        """The modules that are attributes of this one."""
        for _, child in self.named_children():
            yield child

    def modules(self) -> Iterator[Module]:
        """This module and all within it."""
        yield self
        for child in self.children():
            yield from child.modules()

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every parameter with its name, such as "0.weight"; one that is shared comes once."""
        seen: set[int] = set()
        for name, tensor, is_buffer in self._tensors(prefix):
            if not is_buffer and id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def parameters(self) -> Iterator[Tensor]:
        """Every parameter, once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every buffer with its name."""
        for name, tensor, is_buffer in self._tensors(prefix):
            if is_buffer:
                yield name, tensor

    def _tensors(self, prefix: str) -> Iterator[tuple[str, Tensor, bool]]:
        """Name, tensor and whether it is a buffer, of this module and all within it."""
        for name, value in vars(self).items():
            full = f"{prefix}.{name}" if prefix else name
            if isinstance(value, Module):
                yield from value._tensors(full)
            elif isinstance(value, Tensor) and name in self._buffers:
                yield full, value, True
            elif isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                yield full, value, False

    def train(self: _M, mode: bool = True) -> _M:
        """Says whether what follows is training: of dropout and batch norms that decides what they compute."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: _M) -> _M:
        """Says that what follows is evaluation."""
        return self.train(False)

    def to(self: _M, device: str) -> _M:
        """Moves every parameter and buffer to a device, where they are: make optimizers after it."""
        for _, tensor, _ in self._tensors(""):
            tensor.to_(device)
        return self

    def zero_grad(self) -> None:
        """Sets the gradient of every parameter to zero."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all parameters and buffers, on the CPU, by their names."""
        return {name: Tensor(tensor.numpy()) for name, tensor, _ in self._tensors("")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives every parameter and buffer the values, tensors or arrays, that `state` has under its name.

        Raises ValueError, and changes nothing, if a name or a shape does not fit.
        """
        own = {name: tensor for name, tensor, _ in self._tensors("")}
        values = {name: value if isinstance(value, Tensor) else Tensor(value) for name, value in state.items()}
        wrong = [f"{name} is missing" for name in own if name not in values]
        wrong += [f"{name} is unexpected" for name in values if name not in own]
        wrong += [
            f"{name} is {values[name].shape}, not {tensor.shape}"
            for name, tensor in own.items()
            if name in values and values[name].shape != tensor.shape
        ]
        if wrong:
            raise ValueError("this state is not the module's: " + "; ".join(wrong))
        for name, tensor in own.items():
            tensor.copy_(values[name])

    def extra_repr(self) -> str:
        """What `repr` says in the parentheses."""
        return ""

    def __repr__(self) -> str:
        lines = [f"  ({name}): " + repr(child).replace("\n", "\n  ") for name, child in self.named_children()]
        inner = "\n" + "\n".join(lines) + "\n" if lines else self.extra_repr()
        return f"{type(self).__name__}({inner})"


class Sequential(Module):
    """Modules one after the other, whose names are their numbers: "0.weight"."""

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        self._length = 0
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> Sequential:
        """This with one more module at its end."""
        setattr(self, str(self._length), module)
        self._length += 1
        return self

    def forward(self, x: Any) -> Any:
        for module in self.children():
            x = module(x)
        return x

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Module:
        return list(self.children())[index]

    def __iter__(self) -> Iterator[Module]:
        return self.children()


class ModuleList(Module):
    """Modules in a list, whose names are their numbers."""

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        self._length = 0
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        """This with one more module at its end."""
        setattr(self, str(self._length), module)
        self._length += 1
        return self

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Module:
        return list(self.children())[index]

    def __iter__(self) -> Iterator[Module]:
        return self.children()
