// SPDX-License-Identifier: Apache-2.0
// CPython's limited interface as far as this extension uses it, without its headers, which most machines with a Python
// do not have. Layouts and functions are the same in every CPython from 3.10 on, but for those without a GIL.
// References: "new" is the caller's to drop, "borrowed" is not.
#pragma once

#include <cstddef>

// NOLINTBEGIN(readability-identifier-naming,google-runtime-int): the names and types are CPython's
extern "C" {

struct PyTypeObject;

struct PyObject {
  ptrdiff_t references;
  PyTypeObject* type;
};

struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* const* arguments, ptrdiff_t count);  // as METH_FASTCALL
  int flags;
  const char* doc;
};

struct PyModuleDef {
  PyObject head;
  PyObject* (*initialize)();
  ptrdiff_t index;
  PyObject* copy;
  const char* name;
  const char* doc;
  ptrdiff_t size;
  PyMethodDef* methods;
  void* slots;
  void* traverse;
  void* clear;
  void* free;
};

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern PyObject* PyExc_TypeError;

PyObject* PyModule_Create2(PyModuleDef* definition, int version);
void Py_IncRef(PyObject* object);
void Py_DecRef(PyObject* object);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void* state);
PyObject* PyErr_Occurred();  // borrowed
void PyErr_Clear();
void PyErr_SetString(PyObject* kind, const char* text);
unsigned long long PyLong_AsUnsignedLongLong(PyObject* number);
PyObject* PyLong_FromUnsignedLongLong(unsigned long long number);        // new
PyObject* PyBytes_FromStringAndSize(const char* bytes, ptrdiff_t size);  // new
PyObject* PyUnicode_InternFromString(const char* text);                  // new
PyObject* PyTuple_Pack(ptrdiff_t size, ...);                             // new
PyObject* PyTuple_New(ptrdiff_t size);                                   // new
int PyTuple_SetItem(PyObject* tuple, ptrdiff_t index, PyObject* item);   // drops `item`
PyObject* PyDict_GetItemWithError(PyObject* dict, PyObject* key);        // borrowed, null without an error if absent
int PyDict_SetItem(PyObject* dict, PyObject* key, PyObject* item);
PyObject* PyObject_GetAttr(PyObject* object, PyObject* name);  // new
int PyObject_SetAttr(PyObject* object, PyObject* name, PyObject* value);
PyObject* PyObject_CallMethodObjArgs(PyObject* object, PyObject* name, ...);  // new

}  // extern "C"
// NOLINTEND(readability-identifier-naming,google-runtime-int)
