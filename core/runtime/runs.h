// How often each engine has run.
#pragma once

#include "opgraft.h"

namespace og {

void count_run(og_ran engine);

}  // namespace og
