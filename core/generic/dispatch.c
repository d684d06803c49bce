/* Which variant runs: visible (og_variant) and forceable (og_select_variant). */
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "internal.h"

static const og_variant_table *const tables[] = {
#ifdef __x86_64__
    &og_variant_avx2,
    &og_variant_f16c,
#endif
    &og_variant_generic,
};
enum { TABLES = sizeof tables / sizeof *tables };

const og_variant_table *og_active = &og_variant_generic;

#ifdef __x86_64__
#define FEATURES(X) X(sse4.2) X(popcnt) X(avx) X(avx2) X(fma) X(bmi2) X(avx512f)

/* Not every compiler's built-in knows this one. Its registers are those of AVX. */
static int has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && __builtin_cpu_supports("avx");
}

static int has_feature(const char *name) {
  __builtin_cpu_init();
  if (!strcmp(name, "f16c")) return has_f16c();
#define X(feature) \
  if (!strcmp(name, #feature)) return __builtin_cpu_supports(#feature) != 0;
  FEATURES(X)
#undef X
  return 0;
}
#else
#define FEATURES(X)
static int has_feature(const char *name) {
  (void)name;
  return 0;
}
#endif

static int runs_here(const og_variant_table *table) {
  return !*table->needs || has_feature(table->needs);
}

static void append(char *list, const char *name) {
  if (*list) strcat(list, " ");
  strcat(list, name);
}

const char *og_cpu_features(void) {
  static char list[128];
  char found[128] = "";
#define X(feature) \
  if (has_feature(#feature)) append(found, #feature);
  FEATURES(X)
#undef X
  if (has_feature("f16c")) append(found, "f16c");
  return strcpy(list, found);
}

const char *og_variants(void) {
  static char list[128];
  char found[128] = "";
  for (int i = 0; i < TABLES; i++)
    if (runs_here(tables[i])) append(found, tables[i]->name);
  return strcpy(list, found);
}

const char *og_variant(void) { return og_active->name; }

og_status og_select_variant(const char *name, og_message *message) {
  for (int i = 0; i < TABLES; i++) {
    if (!runs_here(tables[i])) continue;
    if (!strcmp(name, "auto") || !strcmp(name, tables[i]->name)) {
      og_active = tables[i];
      return OG_OK;
    }
  }
  return og_fail(message, OG_INVALID_ARGUMENT, "variant '%s' is not one of: auto %s", name,
                 og_variants());
}
