#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

og_status og_fail(og_message *message, og_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message->text, sizeof message->text, format, arguments);
  va_end(arguments);
  return status;
}

int og_abi_version(void) { return OG_ABI_VERSION; }

size_t og_dtype_size(og_dtype dtype) {
  static const uint8_t sizes[] = {
#define X(enumerator, name, type, bytes) bytes,
      OG_DTYPES(X)
#undef X
  };
  return (unsigned)dtype < OG_DTYPE_COUNT ? sizes[dtype] : 0;
}

const char *og_dtype_name(og_dtype dtype) {
  static const char *const names[] = {
#define X(enumerator, name, type, bytes) #name,
      OG_DTYPES(X)
#undef X
  };
  return (unsigned)dtype < OG_DTYPE_COUNT ? names[dtype] : "?";
}
