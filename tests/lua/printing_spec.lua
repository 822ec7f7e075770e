-- luacheck: ignore 631 (texts as PyTorch breaks them)
-- tostring(tensor) is PyTorch's repr(tensor), character for character; the texts come from PyTorch 2.11.
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_equal = testing.test, testing.expect_equal
local inf, nan = 1 / 0, 0 / 0

-- Each line: how to make the tensor, its text.
local cases = {
  { function() return torch.tensor({1, 2, 3}) end, [=[
tensor([1, 2, 3])]=] },
  { function() return torch.tensor({1.5, 2, -3.25}) end, [=[
tensor([ 1.5000,  2.0000, -3.2500])]=] },
  { function() return torch.tensor({{1, -2}, {300, 4}}) end, [=[
tensor([[  1,  -2],
        [300,   4]])]=] },
  { function() return torch.tensor({{0.5, 1}, {2, 3}}) end, [=[
tensor([[0.5000, 1.0000],
        [2.0000, 3.0000]])]=] },
  { function() return torch.tensor({true, false}) end, [=[
tensor([ True, False])]=] },
  { function() return torch.tensor({{true}, {false}}) end, [=[
tensor([[ True],
        [False]])]=] },
  { function() return torch.tensor(5) end, [=[
tensor(5)]=] },
  { function() return torch.tensor(2.5) end, [=[
tensor(2.5000)]=] },
  { function() return torch.tensor(true) end, [=[
tensor(True)]=] },
  { function() return torch.tensor({-1}) end, [=[
tensor([-1])]=] },
  { function() return torch.tensor({1e-5, 1}) end, [=[
tensor([1.0000e-05, 1.0000e+00])]=] },
  { function() return torch.tensor({1e9, 1.5}) end, [=[
tensor([1.0000e+09, 1.5000e+00])]=] },
  { function() return torch.tensor({1e10, 2.5e10, 0.5}) end, [=[
tensor([1.0000e+10, 2.5000e+10, 5.0000e-01])]=] },
  { function() return torch.tensor({0.001, 0.5}) end, [=[
tensor([0.0010, 0.5000])]=] },
  { function() return torch.tensor({0.0009, 0.95}) end, [=[
tensor([9.0000e-04, 9.5000e-01])]=] },
  { function() return torch.tensor({1, 2.5, inf}) end, [=[
tensor([1.0000, 2.5000,    inf])]=] },
  { function() return torch.tensor({1, 2, inf, -inf, nan}) end, [=[
tensor([1., 2., inf, -inf, nan])]=] },
  { function() return torch.tensor({inf, nan}) end, [=[
tensor([inf, nan])]=] },
  { function() return torch.tensor({0.1, nan}) end, [=[
tensor([0.1000,    nan])]=] },
  { function() return torch.tensor({nan}) end, [=[
tensor([nan])]=] },
  { function() return torch.tensor({0, 0.5}) end, [=[
tensor([0.0000, 0.5000])]=] },
  { function() return torch.tensor({100000000.5}) end, [=[
tensor([100000000.])]=] },
  { function() return torch.tensor({0, 1e-8}) end, [=[
tensor([0.0000e+00, 1.0000e-08])]=] },
  { function() return torch.tensor({123456.789, 1.5}) end, [=[
tensor([1.2346e+05, 1.5000e+00])]=] },
  { function() return torch.tensor({1000.5, 1}) end, [=[
tensor([1.0005e+03, 1.0000e+00])]=] },
  { function() return torch.tensor({1001, 0.5, -0}) end, [=[
tensor([1.0010e+03, 5.0000e-01, 0.0000e+00])]=] },
  { function() return torch.tensor({1, 2}, { dtype = "float64" }) end, [=[
tensor([1., 2.], dtype=torch.float64)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "float16" }) end, [=[
tensor([1., 2.], dtype=torch.float16)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "bfloat16" }) end, [=[
tensor([1., 2.], dtype=torch.bfloat16)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "int32" }) end, [=[
tensor([1, 2], dtype=torch.int32)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "int16" }) end, [=[
tensor([1, 2], dtype=torch.int16)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "int8" }) end, [=[
tensor([1, 2], dtype=torch.int8)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "uint8" }) end, [=[
tensor([1, 2], dtype=torch.uint8)]=] },
  { function() return torch.tensor({1, 1000, 1e6}, { dtype = "float32" }) end, [=[
tensor([1.0000e+00, 1.0000e+03, 1.0000e+06])]=] },
  { function() return torch.tensor({1e8, 1}, { dtype = "float32" }) end, [=[
tensor([1.0000e+08, 1.0000e+00])]=] },
  { function() return torch.tensor({1e9, 1}, { dtype = "float32" }) end, [=[
tensor([1.0000e+09, 1.0000e+00])]=] },
  { function() return torch.tensor({1, 2}, { dtype = "float32" }) end, [=[
tensor([1., 2.])]=] },
  { function() return torch.tensor({0.1, 2.5}, { dtype = "float64" }) end, [=[
tensor([0.1000, 2.5000], dtype=torch.float64)]=] },
  { function() return torch.tensor({0.1, 70000}, { dtype = "float16" }) end, [=[
tensor([0.1000,    inf], dtype=torch.float16)]=] },
  { function() return torch.tensor({0.1, 2}, { dtype = "bfloat16" }) end, [=[
tensor([0.1001, 2.0000], dtype=torch.bfloat16)]=] },
  { function() return torch.tensor({1, 2.5}, { dtype = "float8_e4m3fn" }) end, [=[
tensor([1.0000, 2.5000], dtype=torch.float8_e4m3fn)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "float8_e8m0fnu" }) end, [=[
tensor([1., 2.], dtype=torch.float8_e8m0fnu)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "uint16" }) end, [=[
tensor([1, 2], dtype=torch.uint16)]=] },
  { function() return torch.tensor({1, 2}, { dtype = "uint64" }) end, [=[
tensor([1, 2], dtype=torch.uint64)]=] },
  { function() return torch.tensor({1, 2.5}, { requires_grad = true }) end, [=[
tensor([1.0000, 2.5000], requires_grad=True)]=] },
  { function() return torch.tensor({1, 2.5}, { dtype = "float64", requires_grad = true }) end, [=[
tensor([1.0000, 2.5000], dtype=torch.float64, requires_grad=True)]=] },
  { function() return torch.tensor({}) end, [=[
tensor([])]=] },
  { function() return torch.tensor({}, { dtype = "int64" }) end, [=[
tensor([], dtype=torch.int64)]=] },
  { function() return torch.tensor({}, { dtype = "bool" }) end, [=[
tensor([], dtype=torch.bool)]=] },
  { function() return torch.zeros { 2, 0 } end, [=[
tensor([], size=(2, 0))]=] },
  { function() return torch.zeros({ 0, 3 }, { dtype = "int32" }) end, [=[
tensor([], size=(0, 3), dtype=torch.int32)]=] },
  { function() return torch.zeros({ 2, 3 }, { device = "meta" }) end, [=[
tensor(..., device='meta', size=(2, 3))]=] },
  { function() return torch.zeros({ 2 }, { device = "meta", dtype = "int64" }) end, [=[
tensor(..., device='meta', size=(2,), dtype=torch.int64)]=] },
  { function() return torch.zeros { 2, 3 } end, [=[
tensor([[0., 0., 0.],
        [0., 0., 0.]])]=] },
  { function() return torch.arange(30) end, [=[
tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,
        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29])]=] },
  { function() return torch.arange(24):view(2, 3, 4) end, [=[
tensor([[[ 0,  1,  2,  3],
         [ 4,  5,  6,  7],
         [ 8,  9, 10, 11]],

        [[12, 13, 14, 15],
         [16, 17, 18, 19],
         [20, 21, 22, 23]]])]=] },
  { function() return torch.arange(24):view(1, 2, 3, 4) / 7 end, [=[
tensor([[[[0.0000, 0.1429, 0.2857, 0.4286],
          [0.5714, 0.7143, 0.8571, 1.0000],
          [1.1429, 1.2857, 1.4286, 1.5714]],

         [[1.7143, 1.8571, 2.0000, 2.1429],
          [2.2857, 2.4286, 2.5714, 2.7143],
          [2.8571, 3.0000, 3.1429, 3.2857]]]])]=] },
  { function() return torch.arange(1000) end, [=[
tensor([  0,   1,   2,   3,   4,   5,   6,   7,   8,   9,  10,  11,  12,  13,
         14,  15,  16,  17,  18,  19,  20,  21,  22,  23,  24,  25,  26,  27,
         28,  29,  30,  31,  32,  33,  34,  35,  36,  37,  38,  39,  40,  41,
         42,  43,  44,  45,  46,  47,  48,  49,  50,  51,  52,  53,  54,  55,
         56,  57,  58,  59,  60,  61,  62,  63,  64,  65,  66,  67,  68,  69,
         70,  71,  72,  73,  74,  75,  76,  77,  78,  79,  80,  81,  82,  83,
         84,  85,  86,  87,  88,  89,  90,  91,  92,  93,  94,  95,  96,  97,
         98,  99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111,
        112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125,
        126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139,
        140, 141, 142, 143, 144, 145, 146, 147, 148, 149, 150, 151, 152, 153,
        154, 155, 156, 157, 158, 159, 160, 161, 162, 163, 164, 165, 166, 167,
        168, 169, 170, 171, 172, 173, 174, 175, 176, 177, 178, 179, 180, 181,
        182, 183, 184, 185, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195,
        196, 197, 198, 199, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209,
        210, 211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223,
        224, 225, 226, 227, 228, 229, 230, 231, 232, 233, 234, 235, 236, 237,
        238, 239, 240, 241, 242, 243, 244, 245, 246, 247, 248, 249, 250, 251,
        252, 253, 254, 255, 256, 257, 258, 259, 260, 261, 262, 263, 264, 265,
        266, 267, 268, 269, 270, 271, 272, 273, 274, 275, 276, 277, 278, 279,
        280, 281, 282, 283, 284, 285, 286, 287, 288, 289, 290, 291, 292, 293,
        294, 295, 296, 297, 298, 299, 300, 301, 302, 303, 304, 305, 306, 307,
        308, 309, 310, 311, 312, 313, 314, 315, 316, 317, 318, 319, 320, 321,
        322, 323, 324, 325, 326, 327, 328, 329, 330, 331, 332, 333, 334, 335,
        336, 337, 338, 339, 340, 341, 342, 343, 344, 345, 346, 347, 348, 349,
        350, 351, 352, 353, 354, 355, 356, 357, 358, 359, 360, 361, 362, 363,
        364, 365, 366, 367, 368, 369, 370, 371, 372, 373, 374, 375, 376, 377,
        378, 379, 380, 381, 382, 383, 384, 385, 386, 387, 388, 389, 390, 391,
        392, 393, 394, 395, 396, 397, 398, 399, 400, 401, 402, 403, 404, 405,
        406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 419,
        420, 421, 422, 423, 424, 425, 426, 427, 428, 429, 430, 431, 432, 433,
        434, 435, 436, 437, 438, 439, 440, 441, 442, 443, 444, 445, 446, 447,
        448, 449, 450, 451, 452, 453, 454, 455, 456, 457, 458, 459, 460, 461,
        462, 463, 464, 465, 466, 467, 468, 469, 470, 471, 472, 473, 474, 475,
        476, 477, 478, 479, 480, 481, 482, 483, 484, 485, 486, 487, 488, 489,
        490, 491, 492, 493, 494, 495, 496, 497, 498, 499, 500, 501, 502, 503,
        504, 505, 506, 507, 508, 509, 510, 511, 512, 513, 514, 515, 516, 517,
        518, 519, 520, 521, 522, 523, 524, 525, 526, 527, 528, 529, 530, 531,
        532, 533, 534, 535, 536, 537, 538, 539, 540, 541, 542, 543, 544, 545,
        546, 547, 548, 549, 550, 551, 552, 553, 554, 555, 556, 557, 558, 559,
        560, 561, 562, 563, 564, 565, 566, 567, 568, 569, 570, 571, 572, 573,
        574, 575, 576, 577, 578, 579, 580, 581, 582, 583, 584, 585, 586, 587,
        588, 589, 590, 591, 592, 593, 594, 595, 596, 597, 598, 599, 600, 601,
        602, 603, 604, 605, 606, 607, 608, 609, 610, 611, 612, 613, 614, 615,
        616, 617, 618, 619, 620, 621, 622, 623, 624, 625, 626, 627, 628, 629,
        630, 631, 632, 633, 634, 635, 636, 637, 638, 639, 640, 641, 642, 643,
        644, 645, 646, 647, 648, 649, 650, 651, 652, 653, 654, 655, 656, 657,
        658, 659, 660, 661, 662, 663, 664, 665, 666, 667, 668, 669, 670, 671,
        672, 673, 674, 675, 676, 677, 678, 679, 680, 681, 682, 683, 684, 685,
        686, 687, 688, 689, 690, 691, 692, 693, 694, 695, 696, 697, 698, 699,
        700, 701, 702, 703, 704, 705, 706, 707, 708, 709, 710, 711, 712, 713,
        714, 715, 716, 717, 718, 719, 720, 721, 722, 723, 724, 725, 726, 727,
        728, 729, 730, 731, 732, 733, 734, 735, 736, 737, 738, 739, 740, 741,
        742, 743, 744, 745, 746, 747, 748, 749, 750, 751, 752, 753, 754, 755,
        756, 757, 758, 759, 760, 761, 762, 763, 764, 765, 766, 767, 768, 769,
        770, 771, 772, 773, 774, 775, 776, 777, 778, 779, 780, 781, 782, 783,
        784, 785, 786, 787, 788, 789, 790, 791, 792, 793, 794, 795, 796, 797,
        798, 799, 800, 801, 802, 803, 804, 805, 806, 807, 808, 809, 810, 811,
        812, 813, 814, 815, 816, 817, 818, 819, 820, 821, 822, 823, 824, 825,
        826, 827, 828, 829, 830, 831, 832, 833, 834, 835, 836, 837, 838, 839,
        840, 841, 842, 843, 844, 845, 846, 847, 848, 849, 850, 851, 852, 853,
        854, 855, 856, 857, 858, 859, 860, 861, 862, 863, 864, 865, 866, 867,
        868, 869, 870, 871, 872, 873, 874, 875, 876, 877, 878, 879, 880, 881,
        882, 883, 884, 885, 886, 887, 888, 889, 890, 891, 892, 893, 894, 895,
        896, 897, 898, 899, 900, 901, 902, 903, 904, 905, 906, 907, 908, 909,
        910, 911, 912, 913, 914, 915, 916, 917, 918, 919, 920, 921, 922, 923,
        924, 925, 926, 927, 928, 929, 930, 931, 932, 933, 934, 935, 936, 937,
        938, 939, 940, 941, 942, 943, 944, 945, 946, 947, 948, 949, 950, 951,
        952, 953, 954, 955, 956, 957, 958, 959, 960, 961, 962, 963, 964, 965,
        966, 967, 968, 969, 970, 971, 972, 973, 974, 975, 976, 977, 978, 979,
        980, 981, 982, 983, 984, 985, 986, 987, 988, 989, 990, 991, 992, 993,
        994, 995, 996, 997, 998, 999])]=] },
  { function() return torch.arange(1001) end, [=[
tensor([   0,    1,    2,  ...,  998,  999, 1000])]=] },
  { function() return torch.arange(1001) / 3 end, [=[
tensor([0.0000e+00, 3.3333e-01, 6.6667e-01,  ..., 3.3267e+02, 3.3300e+02,
        3.3333e+02])]=] },
  { function() return torch.arange(10000):view(100, 100) end, [=[
tensor([[   0,    1,    2,  ...,   97,   98,   99],
        [ 100,  101,  102,  ...,  197,  198,  199],
        [ 200,  201,  202,  ...,  297,  298,  299],
        ...,
        [9700, 9701, 9702,  ..., 9797, 9798, 9799],
        [9800, 9801, 9802,  ..., 9897, 9898, 9899],
        [9900, 9901, 9902,  ..., 9997, 9998, 9999]])]=] },
  { function() return torch.arange(10000):view(100, 100) / 1e4 end, [=[
tensor([[0.0000e+00, 1.0000e-04, 2.0000e-04,  ..., 9.7000e-03, 9.8000e-03,
         9.9000e-03],
        [1.0000e-02, 1.0100e-02, 1.0200e-02,  ..., 1.9700e-02, 1.9800e-02,
         1.9900e-02],
        [2.0000e-02, 2.0100e-02, 2.0200e-02,  ..., 2.9700e-02, 2.9800e-02,
         2.9900e-02],
        ...,
        [9.7000e-01, 9.7010e-01, 9.7020e-01,  ..., 9.7970e-01, 9.7980e-01,
         9.7990e-01],
        [9.8000e-01, 9.8010e-01, 9.8020e-01,  ..., 9.8970e-01, 9.8980e-01,
         9.8990e-01],
        [9.9000e-01, 9.9010e-01, 9.9020e-01,  ..., 9.9970e-01, 9.9980e-01,
         9.9990e-01]])]=] },
  { function() return torch.arange(2000):view(2, 1000) end, [=[
tensor([[   0,    1,    2,  ...,  997,  998,  999],
        [1000, 1001, 1002,  ..., 1997, 1998, 1999]])]=] },
  { function() return torch.arange(2000):view(1000, 2) end, [=[
tensor([[   0,    1],
        [   2,    3],
        [   4,    5],
        ...,
        [1994, 1995],
        [1996, 1997],
        [1998, 1999]])]=] },
  { function() return torch.arange(1400):view(7, 10, 20) end, [=[
tensor([[[   0,    1,    2,  ...,   17,   18,   19],
         [  20,   21,   22,  ...,   37,   38,   39],
         [  40,   41,   42,  ...,   57,   58,   59],
         ...,
         [ 140,  141,  142,  ...,  157,  158,  159],
         [ 160,  161,  162,  ...,  177,  178,  179],
         [ 180,  181,  182,  ...,  197,  198,  199]],

        [[ 200,  201,  202,  ...,  217,  218,  219],
         [ 220,  221,  222,  ...,  237,  238,  239],
         [ 240,  241,  242,  ...,  257,  258,  259],
         ...,
         [ 340,  341,  342,  ...,  357,  358,  359],
         [ 360,  361,  362,  ...,  377,  378,  379],
         [ 380,  381,  382,  ...,  397,  398,  399]],

        [[ 400,  401,  402,  ...,  417,  418,  419],
         [ 420,  421,  422,  ...,  437,  438,  439],
         [ 440,  441,  442,  ...,  457,  458,  459],
         ...,
         [ 540,  541,  542,  ...,  557,  558,  559],
         [ 560,  561,  562,  ...,  577,  578,  579],
         [ 580,  581,  582,  ...,  597,  598,  599]],

        ...,

        [[ 800,  801,  802,  ...,  817,  818,  819],
         [ 820,  821,  822,  ...,  837,  838,  839],
         [ 840,  841,  842,  ...,  857,  858,  859],
         ...,
         [ 940,  941,  942,  ...,  957,  958,  959],
         [ 960,  961,  962,  ...,  977,  978,  979],
         [ 980,  981,  982,  ...,  997,  998,  999]],

        [[1000, 1001, 1002,  ..., 1017, 1018, 1019],
         [1020, 1021, 1022,  ..., 1037, 1038, 1039],
         [1040, 1041, 1042,  ..., 1057, 1058, 1059],
         ...,
         [1140, 1141, 1142,  ..., 1157, 1158, 1159],
         [1160, 1161, 1162,  ..., 1177, 1178, 1179],
         [1180, 1181, 1182,  ..., 1197, 1198, 1199]],

        [[1200, 1201, 1202,  ..., 1217, 1218, 1219],
         [1220, 1221, 1222,  ..., 1237, 1238, 1239],
         [1240, 1241, 1242,  ..., 1257, 1258, 1259],
         ...,
         [1340, 1341, 1342,  ..., 1357, 1358, 1359],
         [1360, 1361, 1362,  ..., 1377, 1378, 1379],
         [1380, 1381, 1382,  ..., 1397, 1398, 1399]]])]=] },
  { function() return torch.arange(1080):view(6, 6, 30) end, [=[
tensor([[[   0,    1,    2,  ...,   27,   28,   29],
         [  30,   31,   32,  ...,   57,   58,   59],
         [  60,   61,   62,  ...,   87,   88,   89],
         [  90,   91,   92,  ...,  117,  118,  119],
         [ 120,  121,  122,  ...,  147,  148,  149],
         [ 150,  151,  152,  ...,  177,  178,  179]],

        [[ 180,  181,  182,  ...,  207,  208,  209],
         [ 210,  211,  212,  ...,  237,  238,  239],
         [ 240,  241,  242,  ...,  267,  268,  269],
         [ 270,  271,  272,  ...,  297,  298,  299],
         [ 300,  301,  302,  ...,  327,  328,  329],
         [ 330,  331,  332,  ...,  357,  358,  359]],

        [[ 360,  361,  362,  ...,  387,  388,  389],
         [ 390,  391,  392,  ...,  417,  418,  419],
         [ 420,  421,  422,  ...,  447,  448,  449],
         [ 450,  451,  452,  ...,  477,  478,  479],
         [ 480,  481,  482,  ...,  507,  508,  509],
         [ 510,  511,  512,  ...,  537,  538,  539]],

        [[ 540,  541,  542,  ...,  567,  568,  569],
         [ 570,  571,  572,  ...,  597,  598,  599],
         [ 600,  601,  602,  ...,  627,  628,  629],
         [ 630,  631,  632,  ...,  657,  658,  659],
         [ 660,  661,  662,  ...,  687,  688,  689],
         [ 690,  691,  692,  ...,  717,  718,  719]],

        [[ 720,  721,  722,  ...,  747,  748,  749],
         [ 750,  751,  752,  ...,  777,  778,  779],
         [ 780,  781,  782,  ...,  807,  808,  809],
         [ 810,  811,  812,  ...,  837,  838,  839],
         [ 840,  841,  842,  ...,  867,  868,  869],
         [ 870,  871,  872,  ...,  897,  898,  899]],

        [[ 900,  901,  902,  ...,  927,  928,  929],
         [ 930,  931,  932,  ...,  957,  958,  959],
         [ 960,  961,  962,  ...,  987,  988,  989],
         [ 990,  991,  992,  ..., 1017, 1018, 1019],
         [1020, 1021, 1022,  ..., 1047, 1048, 1049],
         [1050, 1051, 1052,  ..., 1077, 1078, 1079]]])]=] },
  { function() return torch.arange(40):view(2, 20) / 8 end, [=[
tensor([[0.0000, 0.1250, 0.2500, 0.3750, 0.5000, 0.6250, 0.7500, 0.8750, 1.0000,
         1.1250, 1.2500, 1.3750, 1.5000, 1.6250, 1.7500, 1.8750, 2.0000, 2.1250,
         2.2500, 2.3750],
        [2.5000, 2.6250, 2.7500, 2.8750, 3.0000, 3.1250, 3.2500, 3.3750, 3.5000,
         3.6250, 3.7500, 3.8750, 4.0000, 4.1250, 4.2500, 4.3750, 4.5000, 4.6250,
         4.7500, 4.8750]])]=] },
  { function() return torch.ones(10000):view(100, 100):bool() end, [=[
tensor([[True, True, True,  ..., True, True, True],
        [True, True, True,  ..., True, True, True],
        [True, True, True,  ..., True, True, True],
        ...,
        [True, True, True,  ..., True, True, True],
        [True, True, True,  ..., True, True, True],
        [True, True, True,  ..., True, True, True]])]=] },
  { function() return torch.linspace(0, 1, 1200, { dtype = "float64" }) end, [=[
tensor([0.0000e+00, 8.3403e-04, 1.6681e-03,  ..., 9.9833e-01, 9.9917e-01,
        1.0000e+00], dtype=torch.float64)]=] },
  { function() return -torch.arange(1100) end, [=[
tensor([    0,    -1,    -2,  ..., -1097, -1098, -1099])]=] },
  { function() return torch.arange(15):view(3, 5):t():float() * 1e6 end, [=[
tensor([[       0.,  5000000., 10000000.],
        [ 1000000.,  6000000., 11000000.],
        [ 2000000.,  7000000., 12000000.],
        [ 3000000.,  8000000., 13000000.],
        [ 4000000.,  9000000., 14000000.]])]=] },
  { function() return torch.view_as_complex(torch.tensor({1, 2}, { dtype = "float32" })) end, [=[
tensor(1.+2.j)]=] },
  { function() return torch.view_as_complex(torch.tensor({1.5, -2.25}, { dtype = "float32" })) end, [=[
tensor(1.5000-2.2500j)]=] },
  { function() return torch.view_as_complex(torch.tensor({{1, 2}, {-3, -4}}, { dtype = "float32" })) end, [=[
tensor([ 1.+2.j, -3.-4.j])]=] },
  { function() return torch.view_as_complex(torch.tensor({{1.5, 2}, {-30, -4.25}}, { dtype = "float32" })) end, [=[
tensor([  1.5000+2.0000j, -30.0000-4.2500j])]=] },
  { function() return torch.view_as_complex(torch.tensor({{1, 2}}, { dtype = "float64" })) end, [=[
tensor([1.+2.j], dtype=torch.complex128)]=] },
  { function() return torch.view_as_complex(torch.tensor({{1e-6, 2}, {1, 5}}, { dtype = "float32" })) end, [=[
tensor([1.0000e-06+2.j, 1.0000e+00+5.j])]=] },
  { function() return torch.view_as_complex(torch.tensor({{nan, 2}, {1, inf}}, { dtype = "float32" })) end, [=[
tensor([nan+2.j, 1.+infj])]=] },
  { function() return torch.view_as_complex(torch.tensor({{0, -0.5}, {100, 12}}, { dtype = "float32" })) end, [=[
tensor([  0.-0.5000j, 100.+12.0000j])]=] },
  { function() return torch.view_as_complex(torch.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "float32" })):conj() end, [=[
tensor([1.-2.j, 3.-4.j])]=] },
  { function() return torch.view_as_complex(torch.arange(2400):view(1200, 2):float()) end, [=[
tensor([0.0000e+00+1.0000e+00j, 2.0000e+00+3.0000e+00j, 4.0000e+00+5.0000e+00j,
         ..., 2.3940e+03+2.3950e+03j, 2.3960e+03+2.3970e+03j,
        2.3980e+03+2.3990e+03j])]=] },
  { function() return torch.view_as_complex(torch.arange(24):view(12, 2) / 7) end, [=[
tensor([0.0000+0.1429j, 0.2857+0.4286j, 0.5714+0.7143j, 0.8571+1.0000j,
        1.1429+1.2857j, 1.4286+1.5714j, 1.7143+1.8571j, 2.0000+2.1429j,
        2.2857+2.4286j, 2.5714+2.7143j, 2.8571+3.0000j, 3.1429+3.2857j])]=] },
  { function() return torch.tensor({ 1, 2.5 }, { requires_grad = true }) * torch.tensor(2) end, [=[
tensor([2., 5.], grad_fn=<MulBackward0>)]=] },
  { function() return torch.tensor({ 1, 2.5 }, { requires_grad = true }):sum() end, [=[
tensor(3.5000, grad_fn=<SumBackward0>)]=] },
  { function() return torch.tensor({ 1, 2.5 }, { requires_grad = true }):exp():view(2, 1) end, [=[
tensor([[ 2.7183],
        [12.1825]], grad_fn=<ViewBackward0>)]=] },
  { function() return torch.tensor({ 1, 2.5 }, { requires_grad = true }):detach() end, [=[
tensor([1.0000, 2.5000])]=] },
  { function() return torch.tensor({ 1, 2.5 }, { requires_grad = true }):clone():mul_(2)[0] end, [=[
tensor(2., grad_fn=<SelectBackward0>)]=] },
  { function() return torch.arange(17, { dtype = "float32" }):requires_grad_() end, [=[
tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.,
        14., 15., 16.], requires_grad=True)]=] },
  { function() return torch.arange(8, { dtype = "float64" }):requires_grad_() end, [=[
tensor([0., 1., 2., 3., 4., 5., 6., 7.], dtype=torch.float64,
       requires_grad=True)]=] },
  { function() return torch.arange(8, { dtype = "float64" }):requires_grad_():view(1, 8):exp() end, [=[
tensor([[1.0000e+00, 2.7183e+00, 7.3891e+00, 2.0086e+01, 5.4598e+01, 1.4841e+02,
         4.0343e+02, 1.0966e+03]], dtype=torch.float64, grad_fn=<ExpBackward0>)]=] },
  { function() return torch.arange(9, { dtype = "float64" }):requires_grad_() end, [=[
tensor([0., 1., 2., 3., 4., 5., 6., 7., 8.], dtype=torch.float64,
       requires_grad=True)]=] },
  { function() return torch.arange(9, { dtype = "float64" }):requires_grad_():view(1, 9):exp() end, [=[
tensor([[1.0000e+00, 2.7183e+00, 7.3891e+00, 2.0086e+01, 5.4598e+01, 1.4841e+02,
         4.0343e+02, 1.0966e+03, 2.9810e+03]], dtype=torch.float64,
       grad_fn=<ExpBackward0>)]=] },
  { function() return torch.arange(10, { dtype = "float64" }):requires_grad_() end, [=[
tensor([0., 1., 2., 3., 4., 5., 6., 7., 8., 9.], dtype=torch.float64,
       requires_grad=True)]=] },
  { function() return torch.arange(10, { dtype = "float64" }):requires_grad_():view(1, 10):exp() end, [=[
tensor([[1.0000e+00, 2.7183e+00, 7.3891e+00, 2.0086e+01, 5.4598e+01, 1.4841e+02,
         4.0343e+02, 1.0966e+03, 2.9810e+03, 8.1031e+03]], dtype=torch.float64,
       grad_fn=<ExpBackward0>)]=] },
  { function() return torch.arange(11, { dtype = "float64" }):requires_grad_() end, [=[
tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10.],
       dtype=torch.float64, requires_grad=True)]=] },
  { function() return torch.arange(11, { dtype = "float64" }):requires_grad_():view(1, 11):exp() end, [=[
tensor([[1.0000e+00, 2.7183e+00, 7.3891e+00, 2.0086e+01, 5.4598e+01, 1.4841e+02,
         4.0343e+02, 1.0966e+03, 2.9810e+03, 8.1031e+03, 2.2026e+04]],
       dtype=torch.float64, grad_fn=<ExpBackward0>)]=] },
  { function() return torch.arange(12, { dtype = "float64" }):requires_grad_() end, [=[
tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11.],
       dtype=torch.float64, requires_grad=True)]=] },
  { function() return torch.arange(12, { dtype = "float64" }):requires_grad_():view(1, 12):exp() end, [=[
tensor([[1.0000e+00, 2.7183e+00, 7.3891e+00, 2.0086e+01, 5.4598e+01, 1.4841e+02,
         4.0343e+02, 1.0966e+03, 2.9810e+03, 8.1031e+03, 2.2026e+04, 5.9874e+04]],
       dtype=torch.float64, grad_fn=<ExpBackward0>)]=] },
  { function() return torch.arange(13, { dtype = "float64" }):requires_grad_() end, [=[
tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12.],
       dtype=torch.float64, requires_grad=True)]=] },
  { function() return torch.arange(13, { dtype = "float64" }):requires_grad_():view(1, 13):exp() end, [=[
tensor([[1.0000e+00, 2.7183e+00, 7.3891e+00, 2.0086e+01, 5.4598e+01, 1.4841e+02,
         4.0343e+02, 1.0966e+03, 2.9810e+03, 8.1031e+03, 2.2026e+04, 5.9874e+04,
         1.6275e+05]], dtype=torch.float64, grad_fn=<ExpBackward0>)]=] },
  { function() return torch.tensor({ { 0, 1 }, { 1, 0 } }):to_sparse() end, [=[
tensor(indices=tensor([[0, 1],
                       [1, 0]]),
       values=tensor([1, 1]),
       size=(2, 2), nnz=2, layout=torch.sparse_coo)]=] },
  { function() return torch.tensor({ { 0, 0.5 }, { 1, 0 } }, { dtype = "float64" }):to_sparse() end, [=[
tensor(indices=tensor([[0, 1],
                       [1, 0]]),
       values=tensor([0.5000, 1.0000]),
       size=(2, 2), nnz=2, dtype=torch.float64, layout=torch.sparse_coo)]=] },
  { function() return torch.zeros({ 2, 2 }):to_sparse() end, [=[
tensor(indices=tensor([], size=(2, 0)),
       values=tensor([], size=(0,)),
       size=(2, 2), nnz=0, layout=torch.sparse_coo)]=] },
}

test("tostring has PyTorch's layout", function()
  local wrong = {}
  for i, case in ipairs(cases) do
    local text = tostring(case[1]())
    if text ~= case[2] then
      wrong[#wrong + 1] = ("case %d: expected\n%s\ngot\n%s"):format(i, case[2], text)
    end
  end
  assert(#wrong == 0, table.concat(wrong, "\n"))
end)

test("int64 values beyond 2^53 are printed exactly", function()
  expect_equal(tostring(torch.tensor { 9007199254740993LL, -9223372036854775807LL }),
    "tensor([    9007199254740993, -9223372036854775807])")
end)

test("printing records nothing and leaves the gradient alone", function()
  local x = torch.tensor({ 1, 2 }, { dtype = "float32", requires_grad = true })
  local y = x * 3
  assert(#tostring(y) > 0)
  y:sum():backward()
  expect_equal(tostring(x.grad), "tensor([3., 3.])")
  expect_equal(tostring(x), "tensor([1., 2.], requires_grad=True)")
end)

test("a large tensor is summarised in no time", function()
  local start = os.clock()
  for _ = 1, 20 do assert(#tostring(torch.zeros(4000000)) < 100) end
  assert(os.clock() - start < 5)
end)

testing.finish()
