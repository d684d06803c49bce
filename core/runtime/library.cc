// Finding, checking and loading the user's library. A library is known by the
// SHA-256 of its file and loaded as a private copy named by it: dlopen would
// return the old handle for a file that was rebuilt at the same path, and
// overwriting a mapped file would crash the process.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "function.h"

namespace {

// Deep binding: a library's own functions go before others of the same name in the process,
// or a helper called `fmaf` would silently become libm's. (The sanitizers forbid it.)
#ifdef __SANITIZE_ADDRESS__
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

struct State {
  std::mutex lock;
  std::string cache, search;
  std::map<std::string, void *> libraries;            // by name of the private copy
  std::map<std::string, std::string> origins;         // the file it was copied from
  std::map<std::string, std::unique_ptr<og_function>> functions;
  std::map<std::string, std::mutex> locks;  // by library: its functions share their static data
};

State &state() {
  static State *instance = new State;  // never destroyed: TensorFlow may still run at exit
  return *instance;
}

bool read_file(const std::string &path, std::string *content) {
  std::unique_ptr<FILE, int (*)(FILE *)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return false;
  char block[1 << 16];
  content->clear();
  while (size_t got = std::fread(block, 1, sizeof block, file.get())) content->append(block, got);
  return !std::ferror(file.get());
}

std::string base_name(const std::string &path) { return path.substr(path.rfind('/') + 1); }

// Where the model says, else by file name in each folder of the search path.
bool find_file(const std::string &path, std::string *found, std::string *content) {
  if (read_file(*found = path, content)) return true;
  std::istringstream folders(state().search);
  std::string folder;
  while (std::getline(folders, folder, ':'))
    if (!folder.empty() && read_file(*found = folder + "/" + base_name(path), content)) return true;
  return false;
}

// A copy that is there already may be cut short or old: it must hold this very content.
bool write_copy(const std::string &path, const std::string &content) {
  std::string present;
  if (read_file(path, &present) && present == content) return true;
  std::string part = path + "." + std::to_string(getpid());
  FILE *file = std::fopen(part.c_str(), "wb");
  if (!file) return false;
  bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  written = (std::fclose(file) == 0) && written;
  return written && std::rename(part.c_str(), path.c_str()) == 0;  // whole or not at all
}

// The hash of a compiled object stands beside it: loading a damaged one could crash.
bool is_whole(const std::string &object) {
  std::string content, expected;
  char hex[65];
  if (!read_file(object, &content)) return false;
  og_sha256(content.data(), content.size(), hex);
  return read_file(object.substr(0, object.size() - 3) + ".sha256", &expected) && expected == hex;
}

// A library may look for others from where it lies ($ORIGIN): open a copy there, which is
// deleted at once; what is loaded stays.
void *open_beside(const std::string &origin, const std::string &content) {
  std::string copy = origin + "." + std::to_string(getpid()) + ".opgraft";
  void *handle = write_copy(copy, content) ? dlopen(copy.c_str(), kOpenFlags) : nullptr;
  unlink(copy.c_str());
  return handle;
}

std::string short_hash(const std::string &hash) { return hash.substr(0, 12); }

// The file is there and is the one that was meant.
og_status check_origin(const og_function_spec &spec, std::string *found, std::string *content,
                       og_message *message) {
  if (!find_file(spec.library, found, content))
    return og_fail(message, OG_NOT_FOUND,
                   "the library '%s' (SHA-256 %s...) that holds '%s' cannot be read: %s. Put it "
                   "back, or name the folder where it lies now in OPGRAFT_LIBRARY_PATH",
                   spec.library, short_hash(spec.hash).c_str(), spec.symbol, std::strerror(errno));
  char hex[65];
  og_sha256(content->data(), content->size(), hex);
  if (std::strcmp(hex, spec.hash) != 0)
    return og_fail(message, OG_FAILED_PRECONDITION,
                   "the library '%s' has changed since '%s' was taken from it (SHA-256 was %s..., "
                   "is %s...). Call og.c_function again to use the new one, or put the old one back",
                   found->c_str(), spec.symbol, short_hash(spec.hash).c_str(),
                   short_hash(hex).c_str());
  return OG_OK;
}

og_status load(const og_function_spec &spec, const std::string &name, void **handle,
               og_message *message) {
  State &s = state();
  std::string origin, content;
  og_status status = check_origin(spec, &origin, &content, message);
  if (status) return status;
  if (!*spec.binary && content.compare(0, 4, "\177ELF") != 0)
    return og_fail(message, OG_FAILED_PRECONDITION,
                   "'%s' is not a shared library. Build one with cc -shared -fPIC, or give a C "
                   "source whose name ends in .c",
                   origin.c_str());
  std::string copy = s.cache + "/" + name + ".so";
  if (*spec.binary) {
    if (!is_whole(copy))
      return og_fail(message, OG_NOT_FOUND,
                     "'%s' was compiled, but its object in the cache '%s' is gone or damaged. Call "
                     "og.c_function('%s', ...) once: that compiles it again",
                     spec.library, s.cache.c_str(), origin.c_str());
  } else if (!write_copy(copy, content)) {
    return og_fail(message, OG_INTERNAL,
                   "cannot write a private copy of '%s' to '%s': %s. Set OPGRAFT_CACHE_DIR to a "
                   "folder that can be written",
                   origin.c_str(), copy.c_str(), std::strerror(errno));
  }
  *handle = dlopen(copy.c_str(), kOpenFlags);
  std::string why = *handle ? "" : dlerror();
  if (!*handle && !*spec.binary) *handle = open_beside(origin, content);
  if (!*handle)
    return og_fail(message, OG_FAILED_PRECONDITION,
                   "'%s' cannot be loaded (a private copy of it is): %s. A library that it needs "
                   "must be found from anywhere: by an absolute -rpath, LD_LIBRARY_PATH, or linked "
                   "statically",
                   origin.c_str(), why.c_str());
  s.libraries[name] = *handle;
  s.origins[name] = origin;
  return OG_OK;
}

og_status resolve(const og_function_spec &spec, og_function *function, og_message *message) {
  State &s = state();
  function->symbol = spec.symbol;
  function->thread_safe = spec.thread_safe != 0;
  og_status status = function->parse(spec.plan, message);
  if (status) return status;
  if (spec.address) {
    if (std::strcmp(spec.hash, og_process_token()) != 0)
      return og_fail(message, OG_FAILED_PRECONDITION,
                     "'%s' has no file: it lived in the memory of the process that saved this "
                     "model. Compile it to a library and give that to og.c_function",
                     spec.symbol);
    function->address = reinterpret_cast<og_any_pointer>(const_cast<void *>(spec.address));
    function->lock = &s.locks["memory"];
    return OG_OK;
  }
  std::string name = *spec.binary ? spec.binary : spec.hash;
  function->lock = &s.locks[name];
  auto loaded = s.libraries.find(name);
  void *handle = loaded == s.libraries.end() ? nullptr : loaded->second;
  if (!handle && (status = load(spec, name, &handle, message))) return status;
  function->address = reinterpret_cast<og_any_pointer>(dlsym(handle, spec.symbol));
  if (function->address) return OG_OK;
  return og_fail(message, OG_NOT_FOUND, "'%s' has no function '%s'; check the spelling, and in C++ "
                 "declare it extern \"C\"", spec.library, spec.symbol);
}

}  // namespace

extern "C" void og_set_paths(const char *cache, const char *search) {
  std::lock_guard<std::mutex> guard(state().lock);
  state().cache = cache;
  state().search = search;
}

extern "C" const char *og_process_token(void) {
  static const std::string token = [] {
    std::random_device random;
    std::ostringstream text;
    text << "process-" << getpid() << '-' << std::hex << random() << random();
    return text.str();
  }();
  return token.c_str();
}

extern "C" og_status og_hash_file(const char *path, char hex[65], og_message *message) {
  std::string content;
  if (!read_file(path, &content))
    return og_fail(message, OG_NOT_FOUND, "'%s' cannot be read: %s", path, std::strerror(errno));
  og_sha256(content.data(), content.size(), hex);
  return OG_OK;
}

extern "C" og_status og_function_open(const og_function_spec *spec, const og_function **function,
                                      og_message *message) {
  State &s = state();
  std::ostringstream key;
  key << spec->hash << '|' << spec->binary << '|' << spec->symbol << '|' << spec->plan << '|'
      << spec->thread_safe << '|' << spec->address;
  std::lock_guard<std::mutex> guard(s.lock);
  auto known = s.functions.find(key.str());
  if (known == s.functions.end()) {
    auto fresh = std::make_unique<og_function>();
    og_status status = resolve(*spec, fresh.get(), message);
    if (status) return status;
    known = s.functions.emplace(key.str(), std::move(fresh)).first;
  }
  *function = known->second.get();
  return OG_OK;
}

extern "C" size_t og_loaded_libraries(char *buffer, size_t size) {
  State &s = state();
  std::lock_guard<std::mutex> guard(s.lock);
  std::string lines;
  for (const auto &entry : s.origins) lines += entry.first + " " + entry.second + "\n";
  if (size) std::snprintf(buffer, size, "%s", lines.c_str());
  return lines.size();
}
