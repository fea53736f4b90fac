/* Tensix instructions for the cores of a Wormhole tile: word and push.
 *
 * TT_OP(opcode, operands) is the 32-bit word; TT_PUSH(thread, word) stores it to the instruction
 * buffer of Tensix thread 0, 1 or 2. Opcodes and the places of operands are those of the
 * instruction pages of the ISA documentation.
 */
#ifndef TENSIX_H
#define TENSIX_H
#include <stdint.h>

#define TT_OP(opcode, operands) ((uint32_t)(opcode) << 24 | ((uint32_t)(operands)&0xffffffu))
#define TT_PUSH(thread, word) (*(volatile uint32_t *)(0xFFE40000u + ((thread) << 16)) = (word))

#define TT_NOP TT_OP(0x02, 0)
#define TT_SFPNOP TT_OP(0x8f, 0)
#define TT_SFPLOADI(lreg, mod, imm16) TT_OP(0x71, (lreg) << 20 | (mod) << 16 | ((imm16)&0xffff))
#define TT_SFPADD(a, b, c, d, mod) TT_OP(0x85, (a) << 16 | (b) << 12 | (c) << 8 | (d) << 4 | (mod))
#define TT_SFPMUL(a, b, c, d, mod) TT_OP(0x86, (a) << 16 | (b) << 12 | (c) << 8 | (d) << 4 | (mod))
#define TT_SFPMAD(a, b, c, d, mod) TT_OP(0x84, (a) << 16 | (b) << 12 | (c) << 8 | (d) << 4 | (mod))
#endif
