/* Loaded before a User-Mode Linux kernel such as Debian's 6.1, on processors with more registers than it supports.

   Such a kernel saves and restores the first 2,696 bytes of a process's XSAVE area: everything up to AVX-512 and the
   protection keys. The host only restores whole areas (EFAULT otherwise). With AMX these have 11,008 bytes, so the
   kernel's first process dies as it starts. This library completes the restored part by the present content of the
   process's area. Nothing else is lost, because nothing in the kernel uses the additional registers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

static char area[1 << 16];

long ptrace(enum __ptrace_request request, ...)
{
    static long (*host)(enum __ptrace_request, ...);
    va_list given;
    va_start(given, request);
    int pid = va_arg(given, int);
    void *address = va_arg(given, void *), *data = va_arg(given, void *);
    va_end(given);
    if (!host)
        host = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && (uintptr_t)address == NT_X86_XSTATE) {
        struct iovec *part = data, whole = {area, sizeof area};
        if (host(PTRACE_GETREGSET, pid, address, &whole) < 0)
            return -1;
        if (part->iov_len < whole.iov_len) {
            memcpy(area, part->iov_base, part->iov_len);
            return host(request, pid, address, &whole);
        }
    }
    return host(request, pid, address, data);
}
