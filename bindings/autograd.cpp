#include "torch.h"
namespace redco::lua {}
