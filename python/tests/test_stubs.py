"""The stub file has every function, method and argument of the extension, and no other."""

import ast
import inspect
from pathlib import Path

import rustyflow as rf
from rustyflow import _rustyflow

STUB = ast.parse((Path(rf.__file__).parent / "_rustyflow.pyi").read_text())


def arguments(node):
    args = node.args
    named = [a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs]]
    return [name for name in named if name != "self"]


def functions(body):
    """Name and arguments of what the stub defines in a body; of overloads those of all together."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
            is_setter = any(isinstance(d, ast.Attribute) for d in node.decorator_list)
            if not is_setter:
                found[node.name] = None if is_property else arguments(node)
    return found


def of_runtime(value):
    signature = inspect.signature(value)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, p in signature.parameters.items() if name != "self" and p.kind not in kinds]


def test_functions_are_those_of_the_stub():
    stub = functions(STUB.body)
    public = {name: value for name, value in vars(_rustyflow).items() if inspect.isbuiltin(value)}
    assert set(stub) == set(public)
    for name, value in public.items():
        assert stub[name] == of_runtime(value), name


def test_methods_are_those_of_the_stub():
    classes = {node.name: functions(node.body) for node in STUB.body if isinstance(node, ast.ClassDef)}
    runtime = {name: value for name, value in vars(_rustyflow).items() if isinstance(value, type)}
    assert set(classes) == set(runtime)
    for name, value in runtime.items():
        stub = {method: args for method, args in classes[name].items() if not method.startswith("__")}
        own = {method: its for method, its in vars(value).items() if not method.startswith("__")}
        assert set(stub) == set(own), name
        for method, its in own.items():
            if stub[method] is None:
                assert inspect.isgetsetdescriptor(its), (name, method)
            else:
                assert stub[method] == of_runtime(its), (name, method)


def test_everything_public_says_what_it_is():
    classes = [value for value in vars(_rustyflow).values() if isinstance(value, type)]
    methods = [(c, name, its) for c in classes for name, its in vars(c).items() if not name.startswith("_")]
    undocumented = [f"{c.__name__}.{name}" for c, name, its in methods if not its.__doc__]
    undocumented += [name for name, value in vars(_rustyflow).items() if inspect.isbuiltin(value) and not value.__doc__]
    undocumented += [name for name in rf.__all__ if callable(getattr(rf, name)) and not getattr(rf, name).__doc__]
    assert not [name for name in undocumented if not name.startswith("_")]
