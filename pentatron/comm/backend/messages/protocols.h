/// The operations of Backend as protocols. Tensors are CPU tensors with the shapes that backend.h
/// asks for; what a protocol takes it keeps until its last message has ended.
#pragma once

#include "pentatron/comm/backend/messages/operation.h"
#include "pentatron/comm/group.h"

namespace pentatron::comm::messages {

using Tensors = std::vector<at::Tensor>;

/// Small: every member reduces everything. Else each member reduces its part of the elements, in
/// steps, and sends the result to the others: 2 (n - 1) / n of the tensor in and out, which no
/// all-reduce can do with less.
Protocol all_reduce(Operation& op, at::Tensor out, at::Tensor in, ReduceOp reduce);
Protocol all_gather(Operation& op, Tensors outs, at::Tensor in);
Protocol reduce_scatter(Operation& op, at::Tensor out, Tensors ins, ReduceOp reduce);
/// The root scatters parts, which the members then gather.
Protocol broadcast(Operation& op, at::Tensor inout, int root);
Protocol all_to_all(Operation& op, Tensors outs, Tensors ins);
/// Between the two members of a transfer.
Protocol transfer(Operation& op, at::Tensor tensor, bool sends);
Protocol barrier(Operation& op);
/// Every member's words, by member.
Protocol exchange_words(Operation& op, std::vector<int64_t> words,
                        std::shared_ptr<std::vector<std::vector<int64_t>>> result);

} // namespace pentatron::comm::messages
