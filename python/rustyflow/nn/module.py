"""`Module`: something with parameters, which are its attributes and those of the modules in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from .._rustyflow import Tensor

_M = TypeVar("_M", bound="Module")
_L = TypeVar("_L", bound="ModuleList")


def Parameter(data: Tensor, requires_grad: bool = True) -> Tensor:
    """A tensor that a module learns: a leaf that collects a gradient."""
    return data.detach().requires_grad_(requires_grad)


class Module:
    """A network, or a part of one. Subclasses assign parameters and modules to attributes and define `forward`.

    A parameter is a tensor that collects a gradient when it is assigned to an attribute, and stays one when it is
    frozen by `requires_grad_(False)`. A buffer, which belongs to the state and is not learned, is registered by
    `register_buffer`.
    """

    training: bool

    def __init__(self) -> None:
        self.training = True
        self._parameters: set[str] = set()
        self._buffers: set[str] = set()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Tensor, Module)):
            if "_parameters" not in vars(self):
                raise AttributeError(f"{type(self).__name__} assigns {name} before it calls super().__init__()")
            is_learned = isinstance(value, Tensor) and value.requires_grad and value.is_leaf
            (self._parameters.add if is_learned else self._parameters.discard)(name)
        super().__setattr__(name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; `module(x)` calls it."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        """Keeps a tensor that is part of the state and not learned."""
        setattr(self, name, tensor)
        self._buffers.add(name)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules that are attributes of this one."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def children(self) -> Iterator[Module]:
        """The modules that are attributes of this one."""
        for _, child in self.named_children():
            yield child

    def _walk(self, prefix: str) -> Iterator[tuple[str, Module]]:
        """This module and all within it, under every name that they have."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child._walk(f"{prefix}.{name}" if prefix else name)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all within it, each once, with its name, such as "0.body"."""
        seen: set[int] = set()
        for name, module in self._walk(prefix):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all within it, each once."""
        for _, module in self.named_modules():
            yield module

    def apply(self: _M, function: Callable[[Module], Any]) -> _M:
        """Calls a function of every module, such as one that sets initial values."""
        for module in self.modules():
            function(module)
        return self

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

    def buffers(self) -> Iterator[Tensor]:
        """Every buffer."""
        for _, buffer in self.named_buffers():
            yield buffer

    def _tensors(self, prefix: str) -> Iterator[tuple[str, Tensor, bool]]:
        """Name, tensor and whether it is a buffer, of this module and all within it."""
        for path, module in self._walk(prefix):
            for name, value in vars(module).items():
                is_buffer = name in module._buffers
                if isinstance(value, Tensor) and (is_buffer or name in module._parameters):
                    yield (f"{path}.{name}" if path else name), value, is_buffer

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

    def requires_grad_(self: _M, requires_grad: bool = True) -> _M:
        """Freezes every parameter, or lets it collect a gradient again: make optimizers after it."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Sets the gradient of every parameter to zero."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all parameters and buffers, on the CPU, by their names."""
        return {name: Tensor(tensor.numpy()) for name, tensor, _ in self._tensors("")}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Gives every parameter and buffer the values, tensors or arrays, that `state` has under its name.

        Raises ValueError, and changes nothing, if a name or a shape does not fit. Without `strict` names may be missing
        or have no place.
        """
        own = {name: tensor for name, tensor, _ in self._tensors("")}
        values = {name: value if isinstance(value, Tensor) else Tensor(value) for name, value in state.items()}
        wrong = [f"{name} is missing" for name in own if strict and name not in values]
        wrong += [f"{name} is unexpected" for name in values if strict and name not in own]
        wrong += [
            f"{name} is {values[name].shape}, not {tensor.shape}"
            for name, tensor in own.items()
            if name in values and values[name].shape != tensor.shape
        ]
        if wrong:
            raise ValueError("the state does not match the module: " + "; ".join(wrong))
        for name in own.keys() & values.keys():
            own[name].copy_(values[name])

    def extra_repr(self) -> str:
        """What `repr` says in the parentheses."""
        return ""

    def __repr__(self) -> str:
        lines = [f"  ({name}): " + repr(child).replace("\n", "\n  ") for name, child in self.named_children()]
        inner = "\n" + "\n".join(lines) + "\n" if lines else self.extra_repr()
        return f"{type(self).__name__}({inner})"


class ModuleList(Module):
    """Modules in a list, whose names are their numbers."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self._length = 0
        for module in modules:
            self.append(module)

    def append(self: _L, module: Module) -> _L:
        """This with one more module at its end."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} holds modules, not a {type(module).__name__}")
        setattr(self, str(self._length), module)
        self._length += 1
        return self

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Module:
        return list(self.children())[index]

    def __iter__(self) -> Iterator[Module]:
        return self.children()


class Sequential(ModuleList):
    """Modules one after the other, whose names are their numbers: "0.weight"."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self.children():
            x = module(x)
        return x
