// Stub: libtorch ships without Gloo's headers; only these names are needed, no object is ever made here.
#pragma once
