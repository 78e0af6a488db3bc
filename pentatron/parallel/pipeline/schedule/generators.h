/// The generators, one file each; make_schedule() has checked the sizes. A generator fills
/// `actions` of an otherwise complete schedule.
#pragma once

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

/// All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965).
/// Idle share (p-1)/(m+p-1); every rank keeps all m microbatches.
void gpipe(Schedule& schedule);

/// 1F1B, or PipeDream-Flush (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1).
/// Idle share (p-1)/(m+p-1); rank r keeps at most min(p-r, m) microbatches.
void one_f_one_b(Schedule& schedule);

/// Interleaved 1F1B (arXiv:2104.04473, section 2.2.2): rank r holds stages r, r+p, r+2p, ...
/// Idle time is 1F1B's divided by the stages a rank, for every m >= p. Megatron's order where p
/// divides m; else its groups of p microbatches become a little larger. With g = ceil(m / floor(m /
/// p)) rank r keeps at most 2(p-r-1) + (v-1)g + 1 (stage, microbatch) pairs.
void interleaved(Schedule& schedule);

/// ZB-H1 (Qi et al. 2023, arXiv:2401.10241, section 2.2): 1F1B with weight gradients put off.
/// A rank's idle time (p-1)(F+I-W); every rank keeps at most p microbatches.
void zb_h1(Schedule& schedule);

/// ZB-H2 (arXiv:2401.10241, section 2.2): more forwards before the first backward.
/// A rank's idle time (p-1)(F+I-2W), between its own first and last action; at most 2p-1
/// microbatches. With p + k microbatches, k < p - 1, the step has k W for filling and not p - 1.
void zb_h2(Schedule& schedule);

/// ZB-V (Qi et al. 2024, arXiv:2405.15362): rank r holds stages r and 2p-1-r.
/// No idle time between a rank's first and last action if F = I = W; at most 2p (stage,
/// microbatch) pairs, the activations of 1F1B's first rank.
void zb_v(Schedule& schedule);

/// DualPipeV (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1, cut in half: Sea AI Lab 2025):
/// rank r holds stages r and 2p-1-r; forwards of one direction overlap backwards of the other.
/// Idle time (p-1)(F&B+B-3W) with F&B the time of an overlapped pair; at most 2p+1 pairs.
void dualpipe_v(Schedule& schedule);

/// Drops the actions of microbatches from `num_microbatches` on. What is left of a valid schedule
/// is valid, which is how sizes that do not fit a pattern are made from ones that do.
void keep_microbatches(Schedule& schedule, int num_microbatches);

} // namespace pentatron::pipeline
