// The numbers of one step of AdamW: as Rust hands them over (`AdamWStep` of `ffi.rs`), and as loops over elements use them.
#pragma once
#include <cmath>
#include <cstdint>

struct AdamWStep {
  double learning_rate, betas[2], eps, weight_decay;
  uint64_t number; // counted from 1
  double grad_scale;
  bool zero_grad; // the gradient is zero afterwards
};

struct AdamWFactors {
  float grad_scale, decay, step_size, beta1, new1, beta2, new2, root_bias2, eps; // new: one less beta
  bool zero;

  explicit AdamWFactors(const AdamWStep& of)
      : grad_scale(static_cast<float>(of.grad_scale)), decay(static_cast<float>(1 - of.learning_rate * of.weight_decay)),
        step_size(static_cast<float>(of.learning_rate / bias(of, 0))), beta1(static_cast<float>(of.betas[0])),
        new1(static_cast<float>(1 - of.betas[0])), beta2(static_cast<float>(of.betas[1])), new2(static_cast<float>(1 - of.betas[1])),
        root_bias2(static_cast<float>(std::sqrt(bias(of, 1)))), eps(static_cast<float>(of.eps)), zero(of.zero_grad) {}

private:
  static double bias(const AdamWStep& of, int moment) { return 1 - std::pow(of.betas[moment], static_cast<double>(of.number)); }
};
