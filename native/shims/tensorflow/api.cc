// SPDX-License-Identifier: Apache-2.0
#include "shims/tensorflow/api.h"

#include <dlfcn.h>

namespace hvd::tensorflow {

Api tf;

std::string load_api() {
  void* library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "libtensorflow_framework.so.2 is not loaded: import tensorflow first";
#define HVD_LOOK_UP(name, result, arguments)                                    \
  tf.name = reinterpret_cast<result(*) arguments>(dlsym(library, "TF_" #name)); \
  if (tf.name == nullptr) return "this TensorFlow has no function TF_" #name;
  HVD_TENSORFLOW_API(HVD_LOOK_UP)
#undef HVD_LOOK_UP
  return "";
}

}  // namespace hvd::tensorflow
