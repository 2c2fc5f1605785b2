# SPDX-License-Identifier: Apache-2.0
"""Caffe's messages as one table, turned into protobuf classes. The numbers are the wire format of users' files.

A line is a message and its fields, `name=number:type`. `*` after the type: repeated, `*p`: repeated and packed. A
default stands in brackets, because code and text files rely on it. An enum's values have numbers too; it belongs to the
message whose name it begins with.

Text files carry names only. So the fields that Intel Caffe added under numbers that BVLC Caffe uses for others have
numbers of their own here, from 1000 on.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["message"]

TABLE = """
enum Phase TRAIN=0 TEST=1
enum Engine DEFAULT=0 CAFFE=1 CUDNN=2 MKL2017=3 MKLDNN=4
BlobShape dim=1:int64*p
BlobProto shape=7:BlobShape data=5:float*p diff=6:float*p double_data=8:double*p double_diff=9:double*p num=1:int32(0)
  channels=2:int32(0) height=3:int32(0) width=4:int32(0)
BlobProtoVector blobs=1:BlobProto*
Datum channels=1:int32 height=2:int32 width=3:int32 data=4:bytes label=5:int32 float_data=6:float* encoded=7:bool(false)
enum FillerParameter.VarianceNorm FAN_IN=0 FAN_OUT=1 AVERAGE=2
FillerParameter type=1:string(constant) value=2:float(0) min=3:float(0) max=4:float(1) mean=5:float(0) std=6:float(1)
  sparse=7:int32(-1) variance_norm=8:FillerParameter.VarianceNorm(FAN_IN)
NetParameter name=1:string layers=2:V1LayerParameter* input=3:string* input_dim=4:int32* force_backward=5:bool(false)
  state=6:NetState debug_info=7:bool(false) input_shape=8:BlobShape* layer=100:LayerParameter* engine=1000:string
  compile_net_state=1001:CompileNetState bn_scale_remove=1002:bool(false) bn_scale_merge=1003:bool(false)
CompileNetState is_init=1:bool(false) bn_scale_remove=2:bool(false) bn_scale_merge=3:bool(false)
NetState phase=1:Phase(TEST) level=2:int32(0) stage=3:string*
NetStateRule phase=1:Phase min_level=2:int32 max_level=3:int32 stage=4:string* not_stage=5:string*
enum SolverParameter.SnapshotFormat HDF5=0 BINARYPROTO=1
enum SolverParameter.SolverMode CPU=0 GPU=1
enum SolverParameter.SolverType SGD=0 NESTEROV=1 ADAGRAD=2 RMSPROP=3 ADADELTA=4 ADAM=5
SolverParameter net=24:string net_param=25:NetParameter train_net=1:string test_net=2:string*
  train_net_param=21:NetParameter test_net_param=22:NetParameter* train_state=26:NetState test_state=27:NetState*
  test_iter=3:int32* test_interval=4:int32(0) test_compute_loss=19:bool(false) test_initialization=32:bool(true)
  base_lr=5:float display=6:int32 average_loss=33:int32(1) max_iter=7:int32 iter_size=36:int32(1) lr_policy=8:string
  gamma=9:float power=10:float momentum=11:float weight_decay=12:float regularization_type=29:string(L2)
  stepsize=13:int32 stepvalue=34:int32* clip_gradients=35:float(-1) snapshot=14:int32(0) snapshot_prefix=15:string
  snapshot_diff=16:bool(false) snapshot_format=37:SolverParameter.SnapshotFormat(BINARYPROTO)
  solver_mode=17:SolverParameter.SolverMode(GPU) device_id=18:int32(0) random_seed=20:int64(-1) type=40:string(SGD)
  delta=31:float(1e-8) momentum2=39:float(0.999) rms_decay=38:float(0.99) debug_info=23:bool(false)
  snapshot_after_train=28:bool(true) solver_type=30:SolverParameter.SolverType(SGD) layer_wise_reduce=41:bool(true)
  weights=42:string* eval_type=1041:string(classification) ap_version=1042:string(Integral)
  show_per_class_result=1043:bool(false) plateau_winsize=1044:int32* disabled_update=1046:bool(false)
  engine=1047:string warmup_iter=1048:int32(0) warmup_start_lr=1049:float(0) local_lr_auto=1050:bool(false)
  local_gw_ratio=1051:float(0.001) test_offset=1052:int32(0) stagelr=1150:float* stageiter=1151:int32*
SolverState iter=1:int32 learned_net=2:string history=3:BlobProto* current_step=4:int32(0) minimum_loss=5:float(1e38)
  iter_last_event=6:int32(0)
enum ParamSpec.DimCheckMode STRICT=0 PERMISSIVE=1
ParamSpec name=1:string share_mode=2:ParamSpec.DimCheckMode lr_mult=3:float(1) decay_mult=4:float(1)
MultinodeLayerParameter num_nodes=1:uint32(1) model_parts=2:uint32(1)
MnActivationParameter num_nodes_in=1:uint32(0) num_nodes_out=2:uint32(0)
MnGradCompressParameter param_grad_compress_enable=1:bool*
LayerParameter name=1:string type=2:string bottom=3:string* top=4:string* phase=10:Phase loss_weight=5:float*
  param=6:ParamSpec* blobs=7:BlobProto* propagate_down=11:bool* include=8:NetStateRule* exclude=9:NetStateRule*
  engine=149:string multinode=150:MultinodeLayerParameter mn_activation=151:MnActivationParameter
  mn_grad_compress_param=156:MnGradCompressParameter
  transform_param=100:TransformationParameter loss_param=101:LossParameter accuracy_param=102:AccuracyParameter
  argmax_param=103:ArgMaxParameter batch_norm_param=139:BatchNormParameter bias_param=141:BiasParameter
  clip_param=148:ClipParameter concat_param=104:ConcatParameter contrastive_loss_param=105:ContrastiveLossParameter
  convolution_param=106:ConvolutionParameter crop_param=144:CropParameter data_param=107:DataParameter
  dropout_param=108:DropoutParameter dummy_data_param=109:DummyDataParameter eltwise_param=110:EltwiseParameter
  elu_param=140:ELUParameter embed_param=137:EmbedParameter exp_param=111:ExpParameter
  flatten_param=135:FlattenParameter hdf5_data_param=112:HDF5DataParameter hdf5_output_param=113:HDF5OutputParameter
  hinge_loss_param=114:HingeLossParameter image_data_param=115:ImageDataParameter
  infogain_loss_param=116:InfogainLossParameter inner_product_param=117:InnerProductParameter
  input_param=143:InputParameter log_param=134:LogParameter lrn_param=118:LRNParameter
  memory_data_param=119:MemoryDataParameter mvn_param=120:MVNParameter parameter_param=145:ParameterParameter
  pooling_param=121:PoolingParameter power_param=122:PowerParameter prelu_param=131:PReLUParameter
  python_param=130:PythonParameter recurrent_param=146:RecurrentParameter reduction_param=136:ReductionParameter
  relu_param=123:ReLUParameter reshape_param=133:ReshapeParameter scale_param=142:ScaleParameter
  sigmoid_param=124:SigmoidParameter softmax_param=125:SoftmaxParameter spp_param=132:SPPParameter
  slice_param=126:SliceParameter swish_param=147:SwishParameter tanh_param=127:TanHParameter
  threshold_param=128:ThresholdParameter tile_param=138:TileParameter window_data_param=129:WindowDataParameter
TransformationParameter scale=1:float(1) mirror=2:bool(false) crop_size=3:uint32(0) mean_file=4:string
  mean_value=5:float* force_color=6:bool(false) force_gray=7:bool(false)
enum LossParameter.NormalizationMode FULL=0 VALID=1 BATCH_SIZE=2 NONE=3
LossParameter ignore_label=1:int32 normalization=3:LossParameter.NormalizationMode(VALID) normalize=2:bool
AccuracyParameter top_k=1:uint32(1) axis=2:int32(1) ignore_label=3:int32
ArgMaxParameter out_max_val=1:bool(false) top_k=2:uint32(1) axis=3:int32
ClipParameter min=1:float max=2:float
ConcatParameter axis=2:int32(1) concat_dim=1:uint32(1)
BatchNormParameter use_global_stats=1:bool moving_average_fraction=2:float(0.999) eps=3:float(1e-5)
  engine=4:Engine(DEFAULT)
BiasParameter axis=1:int32(1) num_axes=2:int32(1) filler=3:FillerParameter
ContrastiveLossParameter margin=1:float(1) legacy_version=2:bool(false)
ConvolutionParameter num_output=1:uint32 bias_term=2:bool(true) pad=3:uint32* kernel_size=4:uint32* stride=6:uint32*
  dilation=18:uint32* pad_h=9:uint32(0) pad_w=10:uint32(0) kernel_h=11:uint32 kernel_w=12:uint32 stride_h=13:uint32
  stride_w=14:uint32 group=5:uint32(1) weight_filler=7:FillerParameter bias_filler=8:FillerParameter
  engine=15:Engine(DEFAULT) axis=16:int32(1) force_nd_im2col=17:bool(false)
CropParameter axis=1:int32(2) offset=2:uint32*
enum DataParameter.DB LEVELDB=0 LMDB=1
DataParameter source=1:string batch_size=4:uint32 rand_skip=7:uint32(0) backend=8:DataParameter.DB(LEVELDB)
  scale=2:float(1) mean_file=3:string crop_size=5:uint32(0) mirror=6:bool(false) force_encoded_color=9:bool(false)
  prefetch=10:uint32(4) shuffle=11:bool(false)
DropoutParameter dropout_ratio=1:float(0.5)
DummyDataParameter data_filler=1:FillerParameter* shape=6:BlobShape* num=2:uint32* channels=3:uint32* height=4:uint32*
  width=5:uint32*
enum EltwiseParameter.EltwiseOp PROD=0 SUM=1 MAX=2
EltwiseParameter operation=1:EltwiseParameter.EltwiseOp(SUM) coeff=2:float* stable_prod_grad=3:bool(true)
ELUParameter alpha=1:float(1)
EmbedParameter num_output=1:uint32 input_dim=2:uint32 bias_term=3:bool(true) weight_filler=4:FillerParameter
  bias_filler=5:FillerParameter
ExpParameter base=1:float(-1) scale=2:float(1) shift=3:float(0)
FlattenParameter axis=1:int32(1) end_axis=2:int32(-1)
HDF5DataParameter source=1:string batch_size=2:uint32 shuffle=3:bool(false)
HDF5OutputParameter file_name=1:string
enum HingeLossParameter.Norm L1=1 L2=2
HingeLossParameter norm=1:HingeLossParameter.Norm(L1)
ImageDataParameter source=1:string batch_size=4:uint32(1) rand_skip=7:uint32(0) shuffle=8:bool(false)
  new_height=9:uint32(0) new_width=10:uint32(0) is_color=11:bool(true) scale=2:float(1) mean_file=3:string
  crop_size=5:uint32(0) mirror=6:bool(false) root_folder=12:string
InfogainLossParameter source=1:string axis=2:int32(1)
InnerProductParameter num_output=1:uint32 bias_term=2:bool(true) weight_filler=3:FillerParameter
  bias_filler=4:FillerParameter axis=5:int32(1) transpose=6:bool(false)
InputParameter shape=1:BlobShape*
LogParameter base=1:float(-1) scale=2:float(1) shift=3:float(0)
enum LRNParameter.NormRegion ACROSS_CHANNELS=0 WITHIN_CHANNEL=1
LRNParameter local_size=1:uint32(5) alpha=2:float(1) beta=3:float(0.75)
  norm_region=4:LRNParameter.NormRegion(ACROSS_CHANNELS) k=5:float(1) engine=6:Engine(DEFAULT)
MemoryDataParameter batch_size=1:uint32 channels=2:uint32 height=3:uint32 width=4:uint32
MVNParameter normalize_variance=1:bool(true) across_channels=2:bool(false) eps=3:float(1e-9)
ParameterParameter shape=1:BlobShape
enum PoolingParameter.PoolMethod MAX=0 AVE=1 STOCHASTIC=2
enum PoolingParameter.RoundMode CEIL=0 FLOOR=1
PoolingParameter pool=1:PoolingParameter.PoolMethod(MAX) pad=4:uint32(0) pad_h=9:uint32(0) pad_w=10:uint32(0)
  kernel_size=2:uint32 kernel_h=5:uint32 kernel_w=6:uint32 stride=3:uint32(1) stride_h=7:uint32 stride_w=8:uint32
  engine=11:Engine(DEFAULT) global_pooling=12:bool(false) round_mode=13:PoolingParameter.RoundMode(CEIL)
PowerParameter power=1:float(1) scale=2:float(1) shift=3:float(0)
PythonParameter module=1:string layer=2:string param_str=3:string share_in_parallel=4:bool(false)
RecurrentParameter num_output=1:uint32(0) weight_filler=2:FillerParameter bias_filler=3:FillerParameter
  debug_info=4:bool(false) expose_hidden=5:bool(false)
enum ReductionParameter.ReductionOp SUM=1 ASUM=2 SUMSQ=3 MEAN=4
ReductionParameter operation=1:ReductionParameter.ReductionOp(SUM) axis=2:int32(0) coeff=3:float(1)
ReLUParameter negative_slope=1:float(0) engine=2:Engine(DEFAULT)
ReshapeParameter shape=1:BlobShape axis=2:int32(0) num_axes=3:int32(-1)
ScaleParameter axis=1:int32(1) num_axes=2:int32(1) filler=3:FillerParameter bias_term=4:bool(false)
  bias_filler=5:FillerParameter
SigmoidParameter engine=1:Engine(DEFAULT)
SliceParameter axis=3:int32(1) slice_point=2:uint32* slice_dim=1:uint32(1)
SoftmaxParameter engine=1:Engine(DEFAULT) axis=2:int32(1)
SwishParameter beta=1:float(1)
TanHParameter engine=1:Engine(DEFAULT)
TileParameter axis=1:int32(1) tiles=2:int32
ThresholdParameter threshold=1:float(0)
WindowDataParameter source=1:string scale=2:float(1) mean_file=3:string batch_size=4:uint32 crop_size=5:uint32(0)
  mirror=6:bool(false) fg_threshold=7:float(0.5) bg_threshold=8:float(0.5) fg_fraction=9:float(0.25)
  context_pad=10:uint32(0) crop_mode=11:string(warp) cache_images=12:bool(false) root_folder=13:string
enum SPPParameter.PoolMethod MAX=0 AVE=1 STOCHASTIC=2
SPPParameter pyramid_height=1:uint32 pool=2:SPPParameter.PoolMethod(MAX) engine=6:Engine(DEFAULT)
PReLUParameter filler=1:FillerParameter channel_shared=2:bool(false)
enum V1LayerParameter.LayerType NONE=0 ABSVAL=35 ACCURACY=1 ARGMAX=30 BNLL=2 CONCAT=3 CONTRASTIVE_LOSS=37 CONVOLUTION=4
  DATA=5 DECONVOLUTION=39 DROPOUT=6 DUMMY_DATA=32 EUCLIDEAN_LOSS=7 ELTWISE=25 EXP=38 FLATTEN=8 HDF5_DATA=9
  HDF5_OUTPUT=10 HINGE_LOSS=28 IM2COL=11 IMAGE_DATA=12 INFOGAIN_LOSS=13 INNER_PRODUCT=14 LRN=15 MEMORY_DATA=29
  MULTINOMIAL_LOGISTIC_LOSS=16 MVN=34 POOLING=17 POWER=26 RELU=18 SIGMOID=19 SIGMOID_CROSS_ENTROPY_LOSS=27 SILENCE=36
  SOFTMAX=20 SOFTMAX_LOSS=21 SPLIT=22 SLICE=33 TANH=23 WINDOW_DATA=24 THRESHOLD=31
enum V1LayerParameter.DimCheckMode STRICT=0 PERMISSIVE=1
V1LayerParameter bottom=2:string* top=3:string* name=4:string include=32:NetStateRule* exclude=33:NetStateRule*
  type=5:V1LayerParameter.LayerType blobs=6:BlobProto* param=1001:string*
  blob_share_mode=1002:V1LayerParameter.DimCheckMode* blobs_lr=7:float* weight_decay=8:float* loss_weight=35:float*
  accuracy_param=27:AccuracyParameter argmax_param=23:ArgMaxParameter concat_param=9:ConcatParameter
  contrastive_loss_param=40:ContrastiveLossParameter convolution_param=10:ConvolutionParameter
  data_param=11:DataParameter dropout_param=12:DropoutParameter
  dummy_data_param=26:DummyDataParameter eltwise_param=24:EltwiseParameter
  exp_param=41:ExpParameter hdf5_data_param=13:HDF5DataParameter hdf5_output_param=14:HDF5OutputParameter
  hinge_loss_param=29:HingeLossParameter image_data_param=15:ImageDataParameter
  infogain_loss_param=16:InfogainLossParameter inner_product_param=17:InnerProductParameter lrn_param=18:LRNParameter
  memory_data_param=22:MemoryDataParameter mvn_param=34:MVNParameter pooling_param=19:PoolingParameter
  power_param=21:PowerParameter relu_param=30:ReLUParameter sigmoid_param=38:SigmoidParameter
  softmax_param=39:SoftmaxParameter slice_param=31:SliceParameter tanh_param=37:TanHParameter
  threshold_param=25:ThresholdParameter window_data_param=20:WindowDataParameter
  transform_param=36:TransformationParameter loss_param=42:LossParameter
"""

_FIELD = re.compile(r"(\w+)=(\d+):([\w.]+?)(\*p?)?(?:\(([^)]*)\))?$")


def _fill_enum(enum: Any, values: list[str]) -> None:
    for value in values:
        name, number = value.split("=")
        enum.value.add(name=name, number=int(number))


def _fill_message(descriptor: Any, fields: list[str], enums: set[str]) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    for text in fields:
        parsed = _FIELD.match(text)
        assert parsed is not None, text
        name, number, kind, repeated, default = parsed.groups()
        field = descriptor.field.add(name=name, number=int(number))
        field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if kind in enums:
            field.type, field.type_name = kinds.TYPE_ENUM, f".caffe.{kind}"
        elif kind[0].isupper():
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".caffe.{kind}"
        else:
            field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
        if repeated == "*p":
            field.options.packed = True
        if default:
            field.default_value = default


def _read_table() -> Any:
    lines = [line.split() for line in re.sub(r"\n +", " ", TABLE).strip().splitlines()]
    enums = {line[1] for line in lines if line[0] == "enum"}
    file = descriptor_pb2.FileDescriptorProto(name="horovod/caffe/schema.proto", package="caffe")
    messages = {line[0]: file.message_type.add(name=line[0]) for line in lines if line[0] != "enum"}
    for line in lines:
        if line[0] == "enum":
            owner, _, name = line[1].rpartition(".")
            _fill_enum((messages[owner] if owner else file).enum_type.add(name=name), line[2:])
        else:
            _fill_message(messages[line[0]], line[1:], enums)
    return file


# A pool of its own: another package in the process may have Caffe's messages as well.
_pool = descriptor_pool.DescriptorPool()
_pool.Add(_read_table())


def message(name: str) -> Any:
    """The class of a message, such as `message("NetParameter")`."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"caffe.{name}"))
