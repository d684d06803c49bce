// Contractions of codes, whose products stand in a table.
#pragma once

#include "opgraft.h"

namespace og {

og_status prepare_table_matmul(og_call *call, const og_matmul_spec &spec, og_message *message);
og_status run_table_matmul(const og_call &call, const og_matmul_spec &spec, const void *a,
                           const void *b, void *out, char *scratch, og_message *message);
og_status prepare_table_conv2d(og_call *call, const og_conv2d_spec &spec, og_message *message);
og_status run_table_conv2d(const og_call &call, const og_conv2d_spec &spec, const void *input,
                           const void *kernel, void *out, char *scratch, og_message *message);

}  // namespace og
