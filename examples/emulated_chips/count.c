/* Plug-in of QEMU's user-mode emulation: counts executed instructions by address.
 *
 * Written for the interface of QEMU 6 to 9 without its header, which distributions do not ship.
 * Options: out=FILE, lo=ADDRESS, hi=ADDRESS (the text), skiplo, skiphi (left out: the harness).
 * The file: uint64 instructions outside lo..hi, then pairs of uint64 (address, count).
 * On a VLIW machine QEMU translates a packet as one instruction, so packets are counted.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
typedef void (*translated)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*ended)(qemu_plugin_id_t, void *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, translated);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, ended, void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *,
                                                      enum qemu_plugin_op, void *, uint64_t);
EXPORTED int qemu_plugin_version = 1;

static const char *out;
static uint64_t lo, hi, skip_lo, skip_hi, outside, *counts;

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
  (void)id;
  for (size_t n = 0; n < qemu_plugin_tb_n_insns(block); n++) {
    struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, n);
    uint64_t at = qemu_plugin_insn_vaddr(instruction);
    if (at >= skip_lo && at < skip_hi) continue;
    uint64_t *count = at >= lo && at < hi ? &counts[(at - lo) / 2] : &outside;
    qemu_plugin_register_vcpu_insn_exec_inline(instruction, QEMU_PLUGIN_INLINE_ADD_U64, count, 1);
  }
}

static void finish(qemu_plugin_id_t id, void *unused) {
  (void)id, (void)unused;
  FILE *file = fopen(out, "wb");
  if (!file) return;
  fwrite(&outside, sizeof outside, 1, file);
  for (uint64_t n = 0; n <= (hi - lo) / 2; n++) {
    uint64_t pair[2] = {lo + 2 * n, counts[n]};
    if (counts[n]) fwrite(pair, sizeof pair, 1, file);
  }
  fclose(file);
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
  (void)info;
  for (int n = 0; n < argc; n++) {
    if (!strncmp(argv[n], "out=", 4)) out = strdup(argv[n] + 4);
    if (!strncmp(argv[n], "lo=", 3)) lo = strtoull(argv[n] + 3, 0, 0);
    if (!strncmp(argv[n], "hi=", 3)) hi = strtoull(argv[n] + 3, 0, 0);
    if (!strncmp(argv[n], "skiplo=", 7)) skip_lo = strtoull(argv[n] + 7, 0, 0);
    if (!strncmp(argv[n], "skiphi=", 7)) skip_hi = strtoull(argv[n] + 7, 0, 0);
  }
  if (!out || hi <= lo) return 1;
  counts = calloc((hi - lo) / 2 + 1, sizeof *counts);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
  qemu_plugin_register_atexit_cb(id, finish, 0);
  return counts ? 0 : 1;
}
