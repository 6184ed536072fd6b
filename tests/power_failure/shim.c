/*
 * Power failure for a process: loaded in front of libc (LD_PRELOAD) it keeps, for everything the process does to the
 * files below one directory, what is needed to undo it, until the process syncs it. At the n-th call it undoes what was
 * not synced, as a machine without power would, and ends the process. It also makes syncs fail.
 *
 * What a sync covers, as strictly as POSIX allows:
 * - fsync or fdatasync of a file: the bytes written to it, and its size, before the call began;
 * - fsync of a directory: names made, replaced and removed in it. A file whose name was not synced is gone, whatever
 *   was done about its contents; so is a directory, with all that is in it.
 *
 * Environment:
 *   PF_DIR        the directory, absolute. Its own name belongs to it, too.
 *   PF_ATTIC      a directory beside it, on the same file system: keeps removed files until their removal is synced
 *   PF_AFTER      power fails at this call, counted from 1; 0 or absent: never
 *   PF_MODE       "all": nothing that was not synced survives. "some": of each file any sectors of 512 bytes in any state
 *                 since the last sync and any of its sizes; of names a first part
 *   PF_SEED       of all choices
 *   PF_LIES       if set, syncs are acknowledged and do nothing
 *   PF_FAIL_SYNC  path of a file: as long as it exists, every fdatasync of a file fails with EIO
 *   PF_DELAY_US   a sync takes up to so many microseconds, in which other calls go on
 *
 * The device itself is never synced: what the process leaves is in the page cache, and the next process reads it there.
 * The exit status after a power failure is 86; 87 means that the process did something that this file does not model.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SECTOR 512
#define STATUS_POWER_FAILED 86
#define STATUS_NOT_MODELLED 87
/* Enough for one writer, one maintainer and the snapshots of every shard. */
#define MAX_FILES 4096
#define EXPORT __attribute__((visibility("default")))

/* ---- the system itself: through syscall(), so that nothing here is intercepted ---------------------------------- */

static int sys_open(const char *path, int flags, int mode) { return syscall(SYS_openat, AT_FDCWD, path, flags, mode); }
static int sys_rename(const char *a, const char *b) { return syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0); }
static int sys_link(const char *a, const char *b) { return syscall(SYS_linkat, AT_FDCWD, a, AT_FDCWD, b, 0); }
static int sys_unlink(const char *path) { return syscall(SYS_unlinkat, AT_FDCWD, path, 0); }
static ssize_t sys_pwrite(int fd, const void *bytes, size_t n, off_t at) { return syscall(SYS_pwrite64, fd, bytes, n, at); }
static ssize_t sys_pread(int fd, void *bytes, size_t n, off_t at) { return syscall(SYS_pread64, fd, bytes, n, at); }

/* ---- state ------------------------------------------------------------------------------------------------------ */

/* A write that is not synced: the bytes that were there before, as far as the file reached, and its size then. */
struct change {
    struct change *older;
    uint64_t number;
    off_t offset, length, old_size;
    off_t old_length;
    unsigned char *old;
};

struct file {
    dev_t dev;
    ino_t ino;
    int fd; /* ours: keeps the inode, so that its number is not given to another file */
    struct change *newest;
};

enum kind { MADE, MADE_DIR, RENAMED, REMOVED };

/* A change of a name that is not synced. */
struct name {
    struct name *older;
    enum kind kind;
    uint64_t number;
    dev_t dir_dev;
    ino_t dir_ino;
    char *path;   /* the name, or the new name */
    char *source; /* RENAMED: the old name */
    char *attic;  /* RENAMED over a file, or REMOVED: where the old file is kept */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file files[MAX_FILES];
static int file_count;
static struct name *newest_name;
static uint64_t calls, changes, kept_count;
static char dir[PATH_MAX], attic[PATH_MAX], fail_sync[PATH_MAX];
static uint64_t fail_after, delay_us, state;
static int active, mode_some, lies;

static uint64_t chance(uint64_t below) { /* splitmix64 */
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return below ? z % below : 0;
}

static uint64_t number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : 0;
}

static void not_modelled(const char *what, const char *which) {
    dprintf(2, "power failure shim: %s is not modelled (%s)\n", what, which);
    syscall(SYS_exit_group, STATUS_NOT_MODELLED);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PF_DIR"), *beside = getenv("PF_ATTIC"), *failing = getenv("PF_FAIL_SYNC");
    if (!path || !beside) return;
    snprintf(dir, sizeof dir, "%s", path);
    snprintf(attic, sizeof attic, "%s", beside);
    if (failing) snprintf(fail_sync, sizeof fail_sync, "%s", failing);
    fail_after = number_of("PF_AFTER");
    delay_us = number_of("PF_DELAY_US");
    state = number_of("PF_SEED");
    mode_some = getenv("PF_MODE") && !strcmp(getenv("PF_MODE"), "some");
    lies = getenv("PF_LIES") != NULL;
    active = 1;
}

/* ---- the failure ------------------------------------------------------------------------------------------------ */

/* Sectors that keep a later state: earlier changes of them are not undone. An open hash table of one file at a time. */
static uint64_t *settled;
static size_t settled_slots;

static int settle(uint64_t sector, int insert) {
    size_t at = (sector * 0x9E3779B97F4A7C15ull >> 20) % settled_slots;
    while (settled[at]) {
        if (settled[at] == sector + 1) return 1;
        at = (at + 1) % settled_slots;
    }
    if (insert) settled[at] = sector + 1;
    return 0;
}

static void put_back(const struct file *file, const struct change *change, off_t from, off_t to) {
    static const unsigned char zeros[SECTOR];
    while (from < to) {
        off_t known = change->offset + change->old_length, end = to, done;
        if (from < known) {
            if (end > known) end = known;
            done = sys_pwrite(file->fd, change->old + (from - change->offset), end - from, from);
        } else { /* It was behind the end: a hole, should the new size survive. */
            if (end - from > SECTOR) end = from + SECTOR;
            done = sys_pwrite(file->fd, zeros, end - from, from);
        }
        if (done <= 0) not_modelled("a failure to undo", strerror(errno));
        from += done;
    }
}

static void undo_contents(struct file *file) {
    struct change *change;
    uint64_t sectors = 0, count = 0, pick;
    off_t size = -1, smallest = -1;
    struct stat now;
    fstat(file->fd, &now);
    for (change = file->newest; change; change = change->older) {
        sectors += change->length / SECTOR + 2;
        count++;
        smallest = change->old_size;
    }
    if (!count) return;
    /* The size: that of the last sync, or of any moment since. */
    if (mode_some) {
        pick = chance(count + 1);
        size = now.st_size;
        for (change = file->newest; change && pick--; change = change->older) size = change->old_size;
    } else {
        size = smallest;
    }
    settled_slots = sectors * 2 + 1;
    settled = calloc(settled_slots, sizeof *settled);
    if (!settled) not_modelled("a lack of memory", "undo");
    for (change = file->newest; change; change = change->older) {
        off_t end = change->offset + change->length, at = change->offset;
        if (!mode_some) {
            off_t known = change->offset + change->old_length;
            put_back(file, change, at, end < known ? end : known);
            continue;
        }
        while (at < end) {
            off_t sector = at / SECTOR, next = (sector + 1) * SECTOR;
            if (next > end) next = end;
            if (!settle(sector, 0)) {
                if (chance(2)) settle(sector, 1);
                else put_back(file, change, at, next);
            }
            at = next;
        }
    }
    free(settled);
    if (syscall(SYS_ftruncate, file->fd, size)) not_modelled("a failure to truncate", strerror(errno));
}

static void undo_name(const struct name *name) {
    char aside[PATH_MAX + 32];
    snprintf(aside, sizeof aside, "%s/lost-%llu", attic, (unsigned long long)++kept_count);
    switch (name->kind) {
    case MADE:
    case MADE_DIR:
        sys_rename(name->path, aside);
        break;
    case RENAMED:
        sys_rename(name->path, name->source);
        if (name->attic) sys_rename(name->attic, name->path);
        break;
    case REMOVED:
        sys_rename(name->attic, name->path);
        break;
    }
}

static void fail(void) {
    uint64_t count = 0, keep = 0, at;
    struct name *name;
    for (int i = 0; i < file_count; i++) undo_contents(&files[i]);
    for (name = newest_name; name; name = name->older) count++;
    if (mode_some) keep = chance(count + 1);
    for (name = newest_name, at = count; name && at > keep; name = name->older, at--) undo_name(name);
    dprintf(2, "power failure shim: power failed at call %llu: %llu changes of names not synced, %llu of them undone\n",
            (unsigned long long)calls, (unsigned long long)count, (unsigned long long)(count - keep));
    syscall(SYS_exit_group, STATUS_POWER_FAILED);
}

/* With the lock held, before anything is done. */
static void count(void) {
    calls++;
    if (fail_after && calls >= fail_after) fail();
}

/* ---- what is noted ---------------------------------------------------------------------------------------------- */

/* The socket of the commands is no data: it is made anew at every start. */
static int is_socket(const char *path) {
    return strstr(path, "/.ctl") || strstr(path, "/ctl.sock");
}

static int below(const char *path) {
    size_t n = strlen(dir);
    return !is_socket(path) && !strncmp(path, dir, n) && (path[n] == '/' || !path[n]);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return 1;
}

static int tracked(int fd, struct stat *stat) {
    char path[PATH_MAX];
    return active && !fstat(fd, stat) && S_ISREG(stat->st_mode) && path_of(fd, path) && below(path);
}

static struct file *find(const struct stat *stat, int fd) {
    for (int i = 0; i < file_count; i++)
        if (files[i].ino == stat->st_ino && files[i].dev == stat->st_dev) return &files[i];
    if (fd < 0) return NULL;
    if (file_count == MAX_FILES) not_modelled("so many files", "unsynced");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    struct file *file = &files[file_count];
    *file = (struct file){.dev = stat->st_dev, .ino = stat->st_ino, .fd = sys_open(link, O_RDWR | O_CLOEXEC, 0)};
    if (file->fd < 0) not_modelled("a file that cannot be opened again", strerror(errno));
    file_count++;
    return file;
}

/* Notes what is about to be overwritten. */
static void note_write(int fd, const struct stat *stat, off_t offset, off_t length) {
    struct file *file = find(stat, fd);
    struct change *change = calloc(1, sizeof *change);
    if (!change) not_modelled("a lack of memory", "write");
    off_t inside = offset < stat->st_size ? stat->st_size - offset : 0;
    *change = (struct change){.older = file->newest, .number = ++changes, .offset = offset, .length = length,
                              .old_size = stat->st_size, .old_length = inside < length ? inside : length};
    if (change->old_length) {
        change->old = malloc(change->old_length);
        if (!change->old) not_modelled("a lack of memory", "write");
        for (off_t at = 0; at < change->old_length;) {
            ssize_t n = sys_pread(file->fd, change->old + at, change->old_length - at, offset + at);
            if (n <= 0) not_modelled("a file that cannot be read", strerror(errno));
            at += n;
        }
    }
    file->newest = change;
}

/* Changes up to a number are on the device. */
static void synced(const struct stat *stat, uint64_t number) {
    struct file *file = find(stat, -1);
    if (!file) return;
    struct change **link = &file->newest;
    while (*link && (*link)->number > number) link = &(*link)->older;
    while (*link) {
        struct change *change = *link;
        *link = change->older;
        free(change->old);
        free(change);
    }
    if (!file->newest) {
        close(file->fd);
        *file = files[--file_count];
    }
}

static void parent_of(const char *path, struct stat *stat) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (!slash) not_modelled("a relative path", path);
    *slash = 0;
    if (fstatat(AT_FDCWD, *parent ? parent : "/", stat, 0)) not_modelled("a path without parent", path);
}

static struct name *note_name(enum kind kind, const char *path) {
    struct name *name = calloc(1, sizeof *name);
    struct stat parent;
    if (!name) not_modelled("a lack of memory", path);
    parent_of(path, &parent);
    *name = (struct name){.older = newest_name, .kind = kind, .number = ++changes, .path = strdup(path),
                          .dir_dev = parent.st_dev, .dir_ino = parent.st_ino};
    newest_name = name;
    return name;
}

/* Keeps the file that has this name now; NULL if there is none. */
static char *keep(const char *path) {
    char kept[PATH_MAX + 32];
    snprintf(kept, sizeof kept, "%s/kept-%d-%llu", attic, (int)getpid(), (unsigned long long)++kept_count);
    if (sys_link(path, kept)) {
        if (errno != ENOENT) not_modelled("a file that cannot be kept", strerror(errno));
        return NULL;
    }
    return strdup(kept);
}

static void forget(struct name *name) {
    if (name->attic) sys_unlink(name->attic);
    free(name->path);
    free(name->source);
    free(name->attic);
    free(name);
}

static void synced_names(const struct stat *of, uint64_t number) {
    struct name **link = &newest_name;
    while (*link) {
        struct name *name = *link;
        if (name->dir_ino == of->st_ino && name->dir_dev == of->st_dev && name->number <= number) {
            *link = name->older;
            forget(name);
        } else {
            link = &name->older;
        }
    }
}

/* ---- contents --------------------------------------------------------------------------------------------------- */

static ssize_t write_at(int fd, const struct iovec *buffers, int count_of, off_t offset, int at_position) {
    struct stat stat;
    if (!tracked(fd, &stat)) {
        return at_position ? syscall(SYS_writev, fd, buffers, count_of)
                           : syscall(SYS_pwritev, fd, buffers, count_of, offset, offset >> 32);
    }
    off_t length = 0;
    for (int i = 0; i < count_of; i++) length += buffers[i].iov_len;
    pthread_mutex_lock(&lock);
    count();
    fstat(fd, &stat);
    if (at_position) {
        offset = fcntl(fd, F_GETFL) & O_APPEND ? stat.st_size : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    }
    note_write(fd, &stat, offset, length);
    ssize_t written = at_position ? syscall(SYS_writev, fd, buffers, count_of)
                                  : syscall(SYS_pwritev, fd, buffers, count_of, offset, offset >> 32);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return written;
}

EXPORT ssize_t write(int fd, const void *bytes, size_t length) {
    struct iovec buffer = {(void *)bytes, length};
    struct stat stat;
    if (!tracked(fd, &stat)) return syscall(SYS_write, fd, bytes, length);
    return write_at(fd, &buffer, 1, 0, 1);
}

EXPORT ssize_t writev(int fd, const struct iovec *buffers, int n) { return write_at(fd, buffers, n, 0, 1); }

EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) {
    struct iovec buffer = {(void *)bytes, length};
    return write_at(fd, &buffer, 1, offset, 0);
}

EXPORT ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite64(fd, bytes, length, offset);
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *buffers, int n, off_t offset) {
    return write_at(fd, buffers, n, offset, 0);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *buffers, int n, off_t offset) {
    return write_at(fd, buffers, n, offset, 0);
}

/* Cuts or lengthens: what is cut off is noted like an overwrite. */
static int resize(int fd, off_t size) {
    struct stat stat;
    if (!tracked(fd, &stat)) return syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    count();
    fstat(fd, &stat);
    off_t from = size < stat.st_size ? size : stat.st_size, to = size < stat.st_size ? stat.st_size : size;
    note_write(fd, &stat, from, to - from);
    int result = syscall(SYS_ftruncate, fd, size), error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

EXPORT int ftruncate64(int fd, off_t size) { return resize(fd, size); }
EXPORT int ftruncate(int fd, off_t size) { return resize(fd, size); }

static int allocate(int fd, int how, off_t offset, off_t length) {
    struct stat stat;
    if (!tracked(fd, &stat)) return syscall(SYS_fallocate, fd, how, offset, length);
    pthread_mutex_lock(&lock);
    count();
    if (how) not_modelled("fallocate with a mode", dir);
    fstat(fd, &stat);
    /* Only the size can change. */
    if (offset + length > stat.st_size) note_write(fd, &stat, stat.st_size, offset + length - stat.st_size);
    int result = syscall(SYS_fallocate, fd, how, offset, length), error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

EXPORT int fallocate64(int fd, int how, off_t offset, off_t length) { return allocate(fd, how, offset, length); }
EXPORT int fallocate(int fd, int how, off_t offset, off_t length) { return allocate(fd, how, offset, length); }

/* ---- syncs ------------------------------------------------------------------------------------------------------ */

static int sync_fd(int fd) {
    struct stat stat;
    char path[PATH_MAX];
    if (!active || fstat(fd, &stat) || !path_of(fd, path)) return syscall(SYS_fsync, fd);
    char *slash;
    int is_dir = S_ISDIR(stat.st_mode), parent = 0;
    if (is_dir && !below(path)) { /* The directory that has PF_DIR in it. */
        char up[PATH_MAX];
        snprintf(up, sizeof up, "%s", dir);
        if ((slash = strrchr(up, '/'))) *slash = 0;
        parent = !strcmp(up, path);
    }
    if (!below(path) && !parent) return syscall(SYS_fsync, fd);
    if (!is_dir && *fail_sync && !syscall(SYS_faccessat, AT_FDCWD, fail_sync, F_OK)) {
        errno = EIO;
        return -1;
    }
    pthread_mutex_lock(&lock);
    count();
    uint64_t mark = changes;
    uint64_t delay = delay_us ? chance(delay_us) : 0;
    pthread_mutex_unlock(&lock);
    /* Power may fail meanwhile, by the call of another thread or by the end of this one. */
    if (delay) usleep(delay);
    pthread_mutex_lock(&lock);
    count();
    if (!lies) {
        if (is_dir) synced_names(&stat, mark);
        else synced(&stat, mark);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int fsync(int fd) { return sync_fd(fd); }
EXPORT int fdatasync(int fd) { return sync_fd(fd); }
EXPORT void sync(void) { not_modelled("sync", ""); }
EXPORT int syncfs(int fd) { (void)fd; not_modelled("syncfs", ""); return -1; }
EXPORT int sync_file_range(int fd, off_t at, off_t n, unsigned how) {
    (void)fd, (void)at, (void)n, (void)how;
    not_modelled("sync_file_range", "");
    return -1;
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static int open_at(int at, const char *path, int flags, int mode) {
    int interesting = active && path[0] == '/' && below(path);
    if (active && path[0] != '/' && at == AT_FDCWD && (flags & O_CREAT)) {
        char cwd[PATH_MAX];
        if (getcwd(cwd, sizeof cwd) && below(cwd)) not_modelled("a relative path", path);
    }
    if (!interesting || !(flags & (O_CREAT | O_TRUNC))) return syscall(SYS_openat, at, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat stat;
    int there = !fstatat(AT_FDCWD, path, &stat, 0);
    if (there && (flags & O_TRUNC) && !(flags & O_EXCL) && stat.st_size) not_modelled("O_TRUNC", path);
    if (!there) count();
    int fd = syscall(SYS_openat, at, path, flags, mode), error = errno;
    if (fd >= 0 && !there) note_name(MADE, path);
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

#define MODE_OF(flags)                                                                                                 \
    int mode = 0;                                                                                                      \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, int);                                                                                      \
        va_end(rest);                                                                                                  \
    }

EXPORT int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

EXPORT int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

EXPORT int openat64(int at, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_at(at, path, flags | O_LARGEFILE, mode);
}

EXPORT int openat(int at, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_at(at, path, flags, mode);
}

EXPORT int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

EXPORT int rename(const char *from, const char *to) {
    if (!active || (!below(from) && !below(to))) return sys_rename(from, to);
    pthread_mutex_lock(&lock);
    count();
    struct stat a, b;
    parent_of(from, &a);
    parent_of(to, &b);
    if (a.st_ino != b.st_ino) not_modelled("a rename to another directory", to);
    char *old = keep(to);
    int result = sys_rename(from, to), error = errno;
    if (!result) {
        struct name *name = note_name(RENAMED, to);
        name->source = strdup(from);
        name->attic = old;
    } else if (old) {
        sys_unlink(old);
        free(old);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

EXPORT int renameat(int a, const char *from, int b, const char *to) {
    if (active && (below(from) || below(to))) return rename(from, to);
    return syscall(SYS_renameat2, a, from, b, to, 0);
}

EXPORT int unlink(const char *path) {
    if (!active || !below(path)) return sys_unlink(path);
    pthread_mutex_lock(&lock);
    count();
    char *old = keep(path);
    int result = sys_unlink(path), error = errno;
    if (!result) note_name(REMOVED, path)->attic = old;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

EXPORT int mkdir(const char *path, mode_t mode) {
    if (!active || !below(path)) return syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    pthread_mutex_lock(&lock);
    count();
    int result = syscall(SYS_mkdirat, AT_FDCWD, path, mode), error = errno;
    if (!result) note_name(MADE_DIR, path);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

EXPORT int rmdir(const char *path) {
    if (active && below(path)) not_modelled("rmdir", path);
    return syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

EXPORT int link(const char *a, const char *b) {
    if (active && below(b)) not_modelled("link", b);
    return sys_link(a, b);
}
