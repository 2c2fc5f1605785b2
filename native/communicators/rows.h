// SPDX-License-Identifier: Apache-2.0
// One line for each communicator, in the order in which `auto` tries them: its name; the file defines k<Name>Row of
// that type. No include guard: registry.cc reads this more than once.
HVD_COMMUNICATOR(kLoopbackRow)
HVD_COMMUNICATOR(kShmRow)
HVD_COMMUNICATOR(kHierarchicalRow)
HVD_COMMUNICATOR(kTcpRow)
HVD_COMMUNICATOR(kMpiRow)
HVD_COMMUNICATOR(kHierarchicalMpiRow)
