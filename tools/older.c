// What glibc 2.28 does not have and Debian's headers and static libstdc++ ask for. Linked, hidden, into each library that is
// published; see tools/older.py.

#include <sys/stat.h>
#include <time.h>
#include <pthread.h>

// glibc 2.32. Zero: there may be other threads, so reference counts are atomic.
char __libc_single_threaded = 0;

// glibc 2.33: before, these were macros for functions that take the version of `struct stat`.
#ifdef __x86_64__
enum { stat_version = 1 };
#else
enum { stat_version = 0 };
#endif
extern int __xstat(int version, const char* path, struct stat* result);
extern int __lxstat(int version, const char* path, struct stat* result);
extern int __fxstat(int version, int descriptor, struct stat* result);
extern int __fxstatat(int version, int folder, const char* path, struct stat* result, int flags);

int stat(const char* path, struct stat* result) { return __xstat(stat_version, path, result); }
int lstat(const char* path, struct stat* result) { return __lxstat(stat_version, path, result); }
int fstat(int descriptor, struct stat* result) { return __fxstat(stat_version, descriptor, result); }
int fstatat(int folder, const char* path, struct stat* result, int flags) {
  return __fxstatat(stat_version, folder, path, result, flags);
}

// glibc 2.30, what std::condition_variable waits by. Before it there was the realtime clock alone, unless the condition was
// made for another one, and std::condition_variable does not. That clock may be set while a thread waits; so none waits
// longer than a second at once: the C++ library looks at its own clock after that, and waits on.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  enum { second = 1000000000, longest = second };
  struct timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  long long left = longest;
  if (until->tv_sec - now.tv_sec <= 1) left = (until->tv_sec - now.tv_sec) * (long long)second + until->tv_nsec - now.tv_nsec;
  if (left > longest) left = longest;
  if (left < 0) left = 0;
  real.tv_sec += (real.tv_nsec + left) / second;
  real.tv_nsec = (real.tv_nsec + left) % second;
  return pthread_cond_timedwait(condition, mutex, &real);
}
