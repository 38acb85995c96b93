"""numba's `njit` with the compiled code kept on disk. Importing this takes half a second.

numba recompiles a function only if the file that defines it changes. So compiled functions use no
constants and call no functions of other files, but `prefetch`: what is defined elsewhere is an
argument.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the compiled code on disk.

    Divisions do not check for 0, as in numpy: loops with such a check are not vectorised.
    """
    compile_with = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return compile_with(cache=True)(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return compile_with()(function)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Start to read the cache line of an item, without a wait; a compiled function may call it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, *index = arguments
        made = context.make_array(array)(context, builder, values)
        item = cgutils.get_item_pointer(context, builder, array, made, index)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch")
        # to read it, into all caches, as data
        builder.call(function, [builder.bitcast(item, byte), *map(number, (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate
