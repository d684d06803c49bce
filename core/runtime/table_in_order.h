// Products by a table that are added in their order: by an adder that may cut sums off, or in
// double.
#pragma once

#include "opgraft.h"

namespace og {

bool is_in_order(const og_table &table);
og_status check_in_order(const og_call &call, og_message *message);
size_t in_order_scratch(int64_t k, int64_t n, int threads);
int in_order_threads(const og_table &table);

og_status run_in_order_matmul(const og_call &call, const og_matmul_spec &spec, const void *a,
                              const void *b, void *out, char *scratch, og_message *message);
og_status run_in_order_conv2d(const og_call &call, const og_conv2d_spec &spec, const void *input,
                              const void *kernel, void *out, char *scratch, og_message *message);

}  // namespace og
