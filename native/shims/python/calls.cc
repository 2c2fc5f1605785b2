// SPDX-License-Identifier: Apache-2.0
// The Python extension horovod.core._calls: for small tensors ctypes and the steps in Python take longer than the
// operation. core/calls.py says what the functions return. Threads: any that holds the GIL, which is free while the
// engine works.
#include <cstdint>
#include <utility>

#include "horovod/horovod.h"
#include "shims/python/api.h"

namespace {

constexpr int kFastCall = 0x80;     // METH_FASTCALL
constexpr int kLimitedApi = 3;      // PYTHON_ABI_VERSION
constexpr int32_t kSliceMs = 1000;  // for so long Python's signal handlers may wait

class Reference {
 public:
  explicit Reference(PyObject* made) : object_(made) {}
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() {
    if (object_ != nullptr) Py_DecRef(object_);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

PyObject* given(PyObject* object) {
  Py_IncRef(object);
  return object;
}

struct Names {
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* handle = PyUnicode_InternFromString("handle");
  PyObject* entry = PyUnicode_InternFromString("entry");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
};
const Names* names;

decltype(&hvd_run_entry) run_entry;
decltype(&hvd_submit_entry) submit_entry;
decltype(&hvd_wait) wait_for;
decltype(&hvd_release) release;
PyObject* unfinished;  // a dict

template <class T>
T pointer(PyObject* number) {
  return reinterpret_cast<T>(static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(number)));
}

hvd_status fresh_status() {
  hvd_status status;
  status.size = sizeof status;
  status.code = HVD_OK;
  status.failed_rank = -1;
  status.member = -1;
  status.text[0] = '\0';
  return status;
}

// (code, handle, status), or null with an exception.
PyObject* ended(int code, hvd_handle handle, const hvd_status& status) {
  const Reference code_number(PyLong_FromUnsignedLongLong(static_cast<unsigned>(code)));
  const Reference handle_number(PyLong_FromUnsignedLongLong(handle));
  const Reference bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&status), sizeof status));
  if (code_number.get() == nullptr || handle_number.get() == nullptr || bytes.get() == nullptr) return nullptr;
  return PyTuple_Pack(3, code_number.get(), handle_number.get(), bytes.get());
}

// None if the operation is done. Otherwise what `ended` gives; its handle, if there is one, is a key of `unfinished`.
PyObject* run_and_wait(PyObject* const* arguments, hvd_context* context, hvd_entry* entry, const void* input,
                       void* output) {
  hvd_handle handle = 0;
  hvd_status status = fresh_status();
  void* const state = PyEval_SaveThread();
  const int code = run_entry(context, entry, input, output, kSliceMs, &handle, &status);
  PyEval_RestoreThread(state);
  if (code == HVD_OK) return given(&_Py_NoneStruct);
  if (handle != 0) {
    // Before Python code runs, which a signal handler's exception may end: the engine may still write.
    const Reference number(PyLong_FromUnsignedLongLong(handle));
    if (number.get() == nullptr) return nullptr;
    const Reference key(PyTuple_Pack(2, arguments[0], number.get()));
    if (key.get() == nullptr || PyDict_SetItem(unfinished, key.get(), arguments[4]) != 0) return nullptr;
  }
  return ended(code, handle, status);
}

PyObject* bind(PyObject* /*self*/, PyObject* const* arguments, ptrdiff_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "bind(unfinished, run_entry, submit_entry, wait, release)");
    return nullptr;
  }
  run_entry = pointer<decltype(run_entry)>(arguments[1]);
  submit_entry = pointer<decltype(submit_entry)>(arguments[2]);
  wait_for = pointer<decltype(wait_for)>(arguments[3]);
  release = pointer<decltype(release)>(arguments[4]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  unfinished = given(arguments[0]);
  return given(&_Py_NoneStruct);
}

PyObject* submit(PyObject* /*self*/, PyObject* const* arguments, ptrdiff_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "submit(context, entry, source, target, flags)");
    return nullptr;
  }
  auto* const context = pointer<hvd_context*>(arguments[0]);
  auto* const entry = pointer<hvd_entry*>(arguments[1]);
  const auto* const input = pointer<const void*>(arguments[2]);
  auto* const output = pointer<void*>(arguments[3]);
  const auto flags = static_cast<uint32_t>(PyLong_AsUnsignedLongLong(arguments[4]));
  if (PyErr_Occurred() != nullptr) return nullptr;
  hvd_handle handle = 0;
  hvd_status status = fresh_status();
  void* const state = PyEval_SaveThread();
  const int code = submit_entry(context, entry, &input, &output, flags, &handle, &status);
  PyEval_RestoreThread(state);
  return code == HVD_OK ? PyLong_FromUnsignedLongLong(handle) : ended(code, 0, status);
}

PyObject* finish(PyObject* /*self*/, PyObject* const* arguments, ptrdiff_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "finish(context, handle, operation)");
    return nullptr;
  }
  auto* const context = pointer<hvd_context*>(arguments[0]);
  const hvd_handle handle = PyLong_AsUnsignedLongLong(arguments[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  hvd_status status = fresh_status();
  void* const state = PyEval_SaveThread();
  const bool is_done = wait_for(context, handle, kSliceMs, &status) == HVD_OK;
  if (is_done) release(context, handle);
  PyEval_RestoreThread(state);
  if (is_done && PyObject_SetAttr(arguments[2], names->handle, &_Py_NoneStruct) != 0) return nullptr;
  return given(is_done ? &_Py_TrueStruct : &_Py_FalseStruct);
}

PyObject* run(PyObject* /*self*/, PyObject* const* arguments, ptrdiff_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "run(context, entry, source, target, keep)");
    return nullptr;
  }
  auto* const context = pointer<hvd_context*>(arguments[0]);
  auto* const entry = pointer<hvd_entry*>(arguments[1]);
  const auto* const input = pointer<const void*>(arguments[2]);
  auto* const output = pointer<void*>(arguments[3]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return run_and_wait(arguments, context, entry, input, output);
}

bool is(PyObject* made, const PyObject& expected) {
  const Reference result(made);
  return result.get() == &expected;
}

// Dense host memory without any conversion, in a tensor of PyTorch's. False, maybe with an exception, for others.
bool is_plain(PyObject* tensor) {
  return is(PyObject_GetAttr(tensor, names->is_cpu), _Py_TrueStruct) &&
         is(PyObject_CallMethodObjArgs(tensor, names->is_contiguous, nullptr), _Py_TrueStruct) &&
         is(PyObject_CallMethodObjArgs(tensor, names->is_neg, nullptr), _Py_FalseStruct);
}

// Null if there is none, or for any error: the long way says what is wrong.
PyObject* request_of(PyObject* requests, PyObject* tensor, PyObject* const* parts, ptrdiff_t count) {
  PyObject* found = nullptr;
  if (is_plain(tensor)) {
    const Reference key(PyTuple_New(count + 2));
    if (key.get() != nullptr) {
      for (ptrdiff_t part = 0; part < count; ++part) PyTuple_SetItem(key.get(), part, given(parts[part]));
      PyObject* const dtype = PyObject_GetAttr(tensor, names->dtype);
      PyTuple_SetItem(key.get(), count, dtype);
      PyObject* const shape = dtype == nullptr ? nullptr : PyObject_GetAttr(tensor, names->shape);
      PyTuple_SetItem(key.get(), count + 1, shape);
      if (shape != nullptr) found = PyDict_GetItemWithError(requests, key.get());
    }
  }
  if (found == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  return given(found);
}

// (requests, tensor, *parts)
PyObject* find(PyObject* /*self*/, PyObject* const* arguments, ptrdiff_t count) {
  if (count < 2) {
    PyErr_SetString(PyExc_TypeError, "find(requests, tensor, *parts)");
    return nullptr;
  }
  PyObject* const found = request_of(arguments[0], arguments[1], arguments + 2, count - 2);
  return found == nullptr ? given(&_Py_NoneStruct) : found;
}

// (requests, tensor, context, *parts)
PyObject* run_known(PyObject* /*self*/, PyObject* const* arguments, ptrdiff_t count) {
  if (count < 3) {
    PyErr_SetString(PyExc_TypeError, "run_known(requests, tensor, context, *parts)");
    return nullptr;
  }
  PyObject* const tensor = arguments[1];
  const Reference request(request_of(arguments[0], tensor, arguments + 3, count - 3));
  if (request.get() == nullptr) return given(&_Py_FalseStruct);
  const Reference entry(PyObject_GetAttr(request.get(), names->entry));
  if (entry.get() == nullptr) return nullptr;
  const Reference address(PyObject_CallMethodObjArgs(tensor, names->data_ptr, nullptr));
  if (address.get() == nullptr) return nullptr;
  PyObject* const given_to_run[] = {arguments[2], entry.get(), address.get(), address.get(), tensor};
  return run(nullptr, given_to_run, 5);
}

}  // namespace

extern "C" HVD_EXPORT PyObject* PyInit__calls() {  // NOLINT(readability-identifier-naming): by which Python finds it
  static PyMethodDef methods[] = {{"bind", bind, kFastCall, nullptr},
                                  {"run", run, kFastCall, nullptr},
                                  {"submit", submit, kFastCall, nullptr},
                                  {"finish", finish, kFastCall, nullptr},
                                  {"find", find, kFastCall, nullptr},
                                  {"run_known", run_known, kFastCall, nullptr},
                                  {}};
  static PyModuleDef module = {{1, nullptr}, nullptr, 0, nullptr, "_calls", nullptr, -1, methods};
  names = new Names;  // as long as the process
  return PyModule_Create2(&module, kLimitedApi);
}
