#!/usr/bin/env python3
"""Writes tests/lua/op_cases.lua: calls of ATen operators and the values PyTorch gives for them.

    python tests/tools/make_op_cases.py

The calls stand once, in op_calls.txt; each is evaluated here and written as Lua. Needs a PyTorch of
the version that the library is built on. The spec operators_spec.lua runs the written cases.
"""

import ast
import pathlib
import struct
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
CALLS = HERE / "op_calls.txt"
CASES = HERE.parent / "lua" / "op_cases.lua"
SEED = 7  # set before each call, here and in the spec
DTYPES = {k: v for k, v in vars(torch).items() if isinstance(v, torch.dtype)}
FORMATS = {
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "strided": torch.strided,
}


class ArgumentReader:
    """Gives an argument of a call as the Python value and as Lua text."""

    def __init__(self, inputs):
        self.inputs = inputs

    def value(self, node):
        match node:
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand)
            case ast.List():
                return [self.value(e) for e in node.elts]
            case ast.Name(id="inf" | "nan"):
                return float(node.id)
            case ast.Name() if node.id in self.inputs:
                return self.inputs[node.id].clone()
            case ast.Name() if node.id in DTYPES:
                return DTYPES[node.id]
            case ast.Name() if node.id in FORMATS:
                return FORMATS[node.id]
            case ast.Call(func=ast.Name(id="generator")):
                return torch.Generator().manual_seed(self.value(node.args[0]))
        raise ValueError(f"no argument of a call: {ast.unparse(node)}")

    def lua(self, node, in_list=False):
        match node:
            case ast.Constant(value=None):
                return "false" if in_list else "none"
            case ast.Constant(value=bool()):
                return str(node.value).lower()
            case ast.Constant(value=str()):
                return f'"{node.value}"'
            case ast.Constant(value=int()):
                return integer_text(node.value)
            case ast.Constant(value=float()):
                # Lua has one kind of number: 2.0 would be read as the integer 2.
                if node.value == int(node.value):
                    raise ValueError(f"write {node.value} as an integer")
                return repr(node.value)
            case ast.UnaryOp(op=ast.USub()):
                return "-" + self.lua(node.operand)
            case ast.List():
                return "{" + ", ".join(self.lua(e, True) for e in node.elts) + "}"
            case ast.Name() if node.id in self.inputs or node.id in ("inf", "nan"):
                return node.id
            case ast.Name():
                return f'"{node.id}"'
            case ast.Call():
                return f"generator({self.lua(node.args[0])})"
        raise ValueError(f"no argument of a call: {ast.unparse(node)}")


def key_text(name):
    return f'["{name}"]' if name == "end" else name


def integer_text(value):
    return f"{value}LL" if abs(value) > 2**53 else str(value)


def float_text(value, dtype):
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if dtype in (torch.float64, torch.complex128):
        text = repr(value)
    else:  # the fewest digits that give the same float32
        text = next(t for d in range(1, 10) for t in [f"{value:.{d}g}"]
                    if struct.pack("f", float(t)) == struct.pack("f", value))
    return text.removesuffix(".0")


def tensor_text(t):
    t = t.detach().resolve_conj().resolve_neg()
    flat = torch.view_as_real(t) if t.is_complex() else t
    if t.is_floating_point() or t.is_complex():
        data = [float_text(v, t.dtype) for v in flat.double().flatten().tolist()]
    else:
        data = [integer_text(int(v)) for v in flat.flatten().tolist()]
    dtype = str(t.dtype).removeprefix("torch.")
    return f'{{"{dtype}", {{{", ".join(map(str, t.shape))}}}, {{{", ".join(data)}}}}}'


def result_text(value):
    match value:
        case torch.Tensor():
            return tensor_text(value)
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int():
            return integer_text(value)
        case float():
            return float_text(value, torch.float64)
        case str():
            return f'"{value}"'
        case torch.dtype():
            return f'"{str(value).removeprefix("torch.")}"'
        case list() | tuple():
            return '{"list", ' + ", ".join(map(result_text, value)) + "}"
    raise ValueError(f"a result of type {type(value).__name__}")


def results_of(name, value):
    """The results as Lua has them: several for a tuple, one for a list."""
    packet = getattr(torch.ops.aten, name)
    returns = [getattr(packet, o)._schema.returns for o in packet.overloads()]
    if not any(returns):
        return []
    gives_list = any(len(r) == 1 and isinstance(r[0].type, torch.ListType) for r in returns)
    return list(value) if isinstance(value, (list, tuple)) and not gives_list else [value]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(
            a.nan_to_num(4.5), b.nan_to_num(4.5))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


class CaseWriter:
    def __init__(self):
        self.inputs = {}
        self.operators = set()
        self.n_cases = 0

    def input_line(self, line):
        """`name dtype data`, data as nested lists."""
        name, dtype, data = line.split(None, 2)
        data = eval(data, {"inf": float("inf"), "nan": float("nan")})
        self.inputs[name] = torch.tensor(data, dtype=DTYPES[dtype])
        return f'input("{name}", {tensor_text(self.inputs[name])})'

    def evaluate(self, name, is_method, arguments, named, operator_only):
        """The result, and the arguments after the call, of PyTorch's public function where there is
        one that takes these arguments, else of the operator. Says where the two differ."""
        def run(function):
            torch.manual_seed(SEED)
            values = [reader.value(a) for a in arguments]
            keywords = {k.arg: reader.value(k.value) for k in named}
            return function(*values, **keywords), values

        reader = ArgumentReader(self.inputs)
        operator = getattr(torch.ops.aten, name)
        public = getattr(torch.Tensor, name, None) if is_method else (
            getattr(torch, name, None) or getattr(torch._C._nn, name, None))
        if operator_only:
            public = None
        outcomes = []
        errors = []
        for function in filter(None, (public, operator)):
            try:
                outcomes.append(run(function))
            except (TypeError, RuntimeError, ValueError) as error:
                errors.append(error)
        if not outcomes:
            raise errors[0]
        results = [value for value, _ in outcomes]
        if len(results) == 2 and results[1] is not None and not same(*results):
            print(f"note: the public {name} differs from the operator", file=sys.stderr)
        return outcomes[0]

    def case_line(self, line, operator_only):
        call = ast.parse(line, mode="eval").body
        is_method = isinstance(call.func, ast.Attribute)
        name = call.func.attr if is_method else call.func.id
        arguments = ([call.func.value] if is_method else []) + call.args
        value, values = self.evaluate(name, is_method, arguments, call.keywords, operator_only)
        reader = ArgumentReader(self.inputs)
        given = [reader.lua(a) for a in arguments]
        keywords = [f"{key_text(k.arg)} = {reader.lua(k.value)}" for k in call.keywords
                    if not (isinstance(k.value, ast.Constant) and k.value.value is None)]
        if keywords:
            given.append("{" + ", ".join(keywords) + "}")
        results = results_of(name, value)
        texts = [result_text(r) for r in results]
        if not results:  # the operator only changes its first argument
            texts = ["changed = " + result_text(values[0])]
        self.n_cases += 1
        self.operators.add(name.removesuffix("_") if not name.startswith("__") else name)
        kind = "m" if is_method else "f"
        return f'case {{"{name}", "{kind}", {{{", ".join(given)}}}, {", ".join(texts)}}}'

    def write(self, text):
        version = torch.__version__.split("+")[0]
        out = [f"-- Written by tests/tools/make_op_cases.py with PyTorch {version}: do not edit.",
               "-- luacheck: ignore", f"seed = {SEED}", ""]
        failed = 0
        in_group = False
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split(" # ")[0].strip()
            try:
                if line.startswith("["):
                    if in_group:
                        out += ["end)", ""]
                    words = line.strip("[]").split()
                    flags = {w for w in words if w in ("exact", "operator")}
                    name = " ".join(w for w in words if w not in flags)
                    in_group = True
                    is_exact = str("exact" in flags).lower()
                    out.append(f'group("{name}", {{exact = {is_exact}}}, function()')
                elif line and not line.startswith("#"):
                    out.append("  " + self.case_line(line, "operator" in flags) if in_group
                               else self.input_line(line))
            except Exception as error:
                failed += 1
                print(f"{CALLS.name}:{number}: {line}: {type(error).__name__}: "
                      f"{str(error).splitlines()[0]}", file=sys.stderr)
        out += ["end)", ""]
        return "\n".join(out), failed


def main():
    writer = CaseWriter()
    text, failed = writer.write(CALLS.read_text())
    CASES.write_text(text)
    print(f"{writer.n_cases} cases of {len(writer.operators)} operators, {len(text)} bytes")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
