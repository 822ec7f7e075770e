// Stands in for libjbig.so.0 in the wheel. libtiff needs it to load, and the real one is under the
// GPL. Images with this compression, of fax machines, are refused.
extern "C" {

const char* jbg_strerror(int) { return "JBIG compression is not part of this build"; }
int jbg_dec_in(void*, unsigned char*, unsigned long, unsigned long* used) {
  if (used != nullptr) *used = 0;
  return 1;  // any code but JBG_EOK
}
void jbg_dec_init(void*) {}
void jbg_dec_free(void*) {}
unsigned long jbg_dec_getsize(const void*) { return 0; }
unsigned char* jbg_dec_getimage(const void*, int) { return nullptr; }
int jbg_newlen(unsigned char*, unsigned long) { return 1; }
void jbg_enc_init(void*, unsigned long, unsigned long, int, unsigned char**, void*, void*) {}
void jbg_enc_out(void*) {}
void jbg_enc_free(void*) {}
}
