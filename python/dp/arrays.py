"""Memory of other libraries as address, element type and count: anything that has the buffer protocol
(NumPy, array, bytearray, memoryview) or DLPack (PyTorch, CuPy, JAX).

An Array keeps its owner alive. Only dense memory in C order is accepted: libdp moves flat ranges.
"""
from __future__ import annotations

import ctypes
import zlib
from typing import Any

from . import errors

U8, I8, U16, I16, I32, U32, I64, U64, F16, BF16, F32, F64, BOOL = range(13)
SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1)
NAMES = ("u8", "i8", "u16", "i16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "bool")

# struct's letters; native sizes of Linux on 64 bit.
_BY_FORMAT = {"B": U8, "b": I8, "H": U16, "h": I16, "i": I32, "I": U32, "l": I64, "L": U64,
              "q": I64, "Q": U64, "e": F16, "f": F32, "d": F64, "?": BOOL, "c": U8}
# DLPack's code and bits.
_BY_DLPACK = {(0, 8): I8, (0, 16): I16, (0, 32): I32, (0, 64): I64, (1, 8): U8, (1, 16): U16,
              (1, 32): U32, (1, 64): U64, (2, 16): F16, (2, 32): F32, (2, 64): F64, (4, 16): BF16,
              (6, 8): BOOL}
_HOST_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Array:
    """Memory [shape] of `dtype`, in C order."""

    __slots__ = ("address", "dtype", "count", "shape", "is_host", "owner")

    def __init__(self, address: int, dtype: int, shape: tuple[int, ...], is_host: bool,
                 owner: Any) -> None:
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.count = 1
        for extent in shape:
            self.count *= extent
        self.is_host = is_host
        self.owner = owner


def _from_buffer(value: Any, writes: bool) -> Array:
    view = memoryview(value)
    dtype = _BY_FORMAT.get(view.format.lstrip("@=<") if view.format else "B")
    if dtype is None:
        raise errors.InvalidError(f"elements of the format '{view.format}' are no type of libdp")
    if not view.c_contiguous:
        raise errors.InvalidError(f"memory of the shape {view.shape} with the strides {view.strides}"
                                  " is not dense in C order; make a contiguous copy")
    if writes and view.readonly:
        raise errors.InvalidError("the result would go into memory that is read-only")
    if view.nbytes == 0:
        return Array(0, dtype, view.shape or (0,), True, value)
    if view.readonly:
        address = _address_of_readonly(value, view)
    else:
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    return Array(address, dtype, view.shape or (), True, value)


def _address_of_readonly(value: Any, view: memoryview) -> int:
    """Where read-only memory lies: NumPy says it, bytes are ctypes', anything else is copied."""
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        return interface["data"][0]
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0
    raise errors.InvalidError(f"read-only memory of {type(value).__name__}: give a writable one, "
                              "bytes or a NumPy array")


# Their arrays never change, and the compiler may let several share memory; DLPack does not say so.
_IMMUTABLE = ("jax", "jaxlib", "tensorflow")


def _from_dlpack(value: Any, writes: bool) -> Array:
    library = type(value).__module__.partition(".")[0]
    if writes and library in _IMMUTABLE:
        raise errors.InvalidError(f"the result would go into an array of {library}, which never changes: give a "
                                  "writable one as out=, or reduce a copy, numpy.array(x)")
    capsule = value.__dlpack__()
    tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    dtype = _BY_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise errors.InvalidError(f"elements of DLPack's type ({tensor.code}, {tensor.bits} bits, "
                                  f"{tensor.lanes} lanes) are no type of libdp")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dense = 1
    for i in reversed(range(tensor.ndim)):
        if tensor.strides and shape[i] > 1 and tensor.strides[i] != dense and 0 not in shape:
            raise errors.InvalidError(f"memory of the shape {shape} with the strides "
                                      f"{tuple(tensor.strides[k] for k in range(tensor.ndim))} is "
                                      "not dense in C order; make a contiguous copy")
        dense *= shape[i]
    # The capsule is not consumed, so its own destructor frees it; value keeps the memory.
    return Array((tensor.data or 0) + tensor.byte_offset, dtype, shape,
                 tensor.device_type in _HOST_DEVICES, (value, capsule))


_torch_types: dict[Any, int] = {}  # by torch.dtype, as its tensors bring them


def torch_type(dtype: Any) -> int:
    """The number of a torch.dtype. InvalidError: libdp lacks it."""
    number = _torch_types.get(dtype)
    if number is None:
        name = str(dtype).removeprefix("torch.").replace("float", "f").replace("uint", "u") \
            .replace("int", "i")
        if name not in NAMES:
            raise errors.InvalidError(f"elements of {dtype} are no type of libdp")
        number = _torch_types[dtype] = NAMES.index(name)
    return number


def _from_tensor(value: Any) -> Array:
    """A PyTorch tensor, without DLPack's detour. Types that libdp lacks are told."""
    dtype = torch_type(value.dtype)
    if not value.is_contiguous():
        raise errors.InvalidError(f"memory of the shape {tuple(value.shape)} with the strides "
                                  f"{value.stride()} is not dense in C order; make a contiguous copy")
    return Array(value.data_ptr(), dtype, tuple(value.shape), value.device.type == "cpu", value)


def view(value: Any, writes: bool = False) -> Array:
    """The memory of value, which stays alive with what is returned.

    InvalidError: not dense, read-only where it is written, or of a type that libdp lacks.
    """
    if isinstance(value, Array):
        return value
    if hasattr(value, "data_ptr"):
        return _from_tensor(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array_interface__"):
        return _from_dlpack(value, writes)
    try:
        return _from_buffer(value, writes)
    except TypeError:
        if hasattr(value, "__dlpack__"):
            return _from_dlpack(value, writes)
        raise errors.InvalidError(f"{type(value).__name__} has neither the buffer protocol nor "
                                  "DLPack") from None


_tags: dict[tuple[int, ...], int] = {}


def shape_tag(shape: tuple[int, ...]) -> int:
    """A digest of a shape for dp_options_t.tag, so that equal counts of other shapes are told: 0 of
    flat memory."""
    if len(shape) < 2:
        return 0
    tag = _tags.get(shape)
    if tag is None:
        text = "x".join(map(str, shape)).encode()
        tag = _tags[shape] = zlib.crc32(text) | len(shape) << 32
    return tag


def like(value: Any, shape: tuple[int, ...]) -> Any:
    """A new array of value's library and element type with this shape; its contents are undefined."""
    if hasattr(value, "new_empty"):  # PyTorch
        return value.new_empty(shape)
    if hasattr(value, "__array_interface__"):
        import numpy
        return numpy.empty(shape, value.dtype)
    data = view(value)
    letter: Any = next((letter for letter, dtype in _BY_FORMAT.items() if dtype == data.dtype), None)
    if letter is None:
        raise errors.UnsupportedError(f"a new array of {NAMES[data.dtype]} beside one of {type(value).__name__}: "
                                      "Python's buffers have no such type. Give the output")
    if 0 in shape:
        return memoryview(bytearray()).cast(letter)  # other shapes without elements have none
    block = (ctypes.c_char * (SIZES[data.dtype] * _product(shape)))()
    return memoryview(block).cast("B").cast(letter, shape)


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
