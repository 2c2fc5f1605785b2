# SPDX-License-Identifier: Apache-2.0
"""The callbacks of elastic training for model.fit() of tf.keras, which is Keras 3 or tf-keras."""

import tensorflow as tf

from horovod.keras.elastic_callbacks import elastic_callback_classes

__all__ = ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]

_classes = elastic_callback_classes(tf.keras.callbacks)

CommitStateCallback = _classes.CommitStateCallback
UpdateBatchStateCallback = _classes.UpdateBatchStateCallback
UpdateEpochStateCallback = _classes.UpdateEpochStateCallback
